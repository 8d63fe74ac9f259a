/* SPDX-License-Identifier: MIT */
/* The entry every file in tests/fuzz/ defines; called by libFuzzer or by fuzz_replay.c. */
#ifndef QUIRE_TESTS_FUZZ_H
#define QUIRE_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Returns 0. Must accept any bytes, any size, and leave nothing behind for the next call. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
