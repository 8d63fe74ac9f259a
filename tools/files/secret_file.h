/* SPDX-License-Identifier: MIT */
/* secret_file: the secret of a tenant, 32 bytes or 64 hex digits in a file that only its owner can read. */
#ifndef QUIRE_TOOLS_SECRET_FILE_H
#define QUIRE_TOOLS_SECRET_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* NULL, or what is wrong. */
const char *secret_read(const char *path, uint8_t secret[32]);
/* n hex digits, which make n / 2 bytes; false: they are something else. */
bool secret_read_hex(const char *digits, size_t n, uint8_t *bytes);

#endif
