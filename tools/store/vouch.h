/* SPDX-License-Identifier: MIT */
/*
 * vouch: what a slot file does not say. Rows under a key must be those that computing the tokens from position 0 gives. A slot that was
 * shifted, that re-used parts of another prompt, or that was computed with an adapter has others, and its file need not show it. The
 * operator vouches for that; what can be asked is asked.
 */
#ifndef QUIRE_TOOLS_VOUCH_H
#define QUIRE_TOOLS_VOUCH_H

#include "store/options.h"

/* In the text of every namespace of slots: pages that nobody vouched for are never loaded. */
#define VOUCHED "computed-from-zero"

/* "http://HOST:PORT", with an optional path. */
bool vouch_is_url(const char *url);
/* Asks --server for its adapters (/lora-adapters) and for those that requests chose (/slots). The server does not tell whether it shifts
 * or re-uses. TOOL_OK, or what tool_failed() returned. */
int vouch_ask_server(const store_options *o);
/* Reads flags and environment of --pid, which must be on this machine. is_rotation_open: the file does not say whether rows are
 * rotated. */
int vouch_read_process(const store_options *o, bool is_rotation_open);

#endif
