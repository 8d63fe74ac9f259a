/* SPDX-License-Identifier: MIT */
/* opening: what stands for the beginning of a prompt where there is no tokenizer. */
#ifndef QUIRE_TOOLS_SERVE_OPENING_H
#define QUIRE_TOOLS_SERVE_OPENING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A key that later turns of a conversation share with its first one. Of a chat: its tools, what comes before the first message of the
 * user, and the first 4 KiB of that message. Of any other prompt: its first 4 KiB, about 1,024 tokens, or its first 1,024 tokens if it is
 * a list of them. tenant: a text, such as the client's key, that separates those who share nothing; NULL: none. false: the
 * bytes are no prompt, or none that body_read() takes.
 */
bool opening_key(const char *bytes, size_t n, const char *tenant, uint64_t *key);

#endif
