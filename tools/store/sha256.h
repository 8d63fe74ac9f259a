/* SPDX-License-Identifier: MIT */
/* sha256: of a file and of bytes, with OpenSSL. */
#ifndef QUIRE_TOOLS_SHA256_H
#define QUIRE_TOOLS_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Shows how far it is if that takes long. false: see errno. */
bool sha256_file(const char *path, uint8_t digest[32]);
bool sha256_bytes(const void *bytes, size_t n, uint8_t digest[32]);

#endif
