/* SPDX-License-Identifier: MIT */
/* The command `quire store`, run by tests. */
#ifndef QUIRE_TESTS_RUN_KIT_H
#define QUIRE_TESTS_RUN_KIT_H

#define KIT_OUTPUT 65536

/* Runs `quire store ...`; what it prints, to standard error as well, is in out. Returns the exit code. */
int kit_quire_store(char out[KIT_OUTPUT], const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
