/* SPDX-License-Identifier: MIT */
/*
 * convert: requests of /v1/messages and /v1/responses as the messages of a chat that llama-server makes
 * of them, to learn their tokens. Only what decides about the prompt is in them: they are for /apply-template, never for an answer.
 */
#ifndef QUIRE_TOOLS_SERVE_CONVERT_H
#define QUIRE_TOOLS_SERVE_CONVERT_H

#include "serve/body.h"

/* From malloc(). NULL: images, or a form of which it is not known what the server makes of it. */
char *convert_messages(const body *b, size_t *n);
char *convert_responses(const body *b, size_t *n);

#endif
