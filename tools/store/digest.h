/* SPDX-License-Identifier: MIT */
/*
 * digest: the SHA-256 of a large file, remembered. A file that is still the same (device, inode, size, times with nanoseconds) is not
 * read again. What is remembered is in ~/.cache/quire/digests; without it, or if it is damaged, the digest is computed.
 */
#ifndef QUIRE_TOOLS_DIGEST_H
#define QUIRE_TOOLS_DIGEST_H

#include <stdbool.h>
#include <stdint.h>

/* false: errno says why. */
bool digest_file(const char *path, uint8_t digest[32]);

#endif
