/* SPDX-License-Identifier: MIT */
/* config.h: what the user asked for, and what the user is told. */
#ifndef QUIRE_GGML_CONFIG_H
#define QUIRE_GGML_CONFIG_H

#include <quire/quire.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Variables of the environment, or keys of the file that QUIRE_CONFIG names; the environment wins. */
#define CONFIG_KEYS(X)                                                                          \
    X(kv, "QUIRE_KV")           /* policy; without one the declared types keep their meaning */ \
    X(profile, "QUIRE_PROFILE") /* profile for c: codecs */                                     \
    X(profile_record, "QUIRE_PROFILE_RECORD") /* record a profile into this file */             \
    X(profile_length, "QUIRE_PROFILE_LENGTH") /* for contexts of up to so many tokens */        \
    X(rows_record, "QUIRE_ROWS_RECORD")       /* record K, V and Q rows into this file */       \
    X(chain, "QUIRE_CHAIN")                   /* one more backend to load */                    \
    X(log, "QUIRE_LOG")                       /* 1: what is told goes to stderr, not to the log of the host */

struct config {
#define X(key, variable) char *key; /* NULL: not given */
    CONFIG_KEYS(X)
#undef X
    quire_profile *loaded_profile;
    uint32_t profile_tokens; /* profile_length; 0: not given */
};

extern struct config config;

/* false: message says why, in one sentence. */
bool config_read(char *message, size_t size);

/* Whether the program was told to divide every tensor among its devices (-sm tensor). It would take this one too, and the
 * interface has no way to say no: the arguments are all there is to see. */
bool config_splits_tensors(void);

/* One line each, without the newline. Information goes where the host's own goes; trouble always reaches stderr. */
void say_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void say_trouble(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
