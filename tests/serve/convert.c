/* SPDX-License-Identifier: MIT */
/*
 * Reads lines "messages BODY" or "responses BODY" and writes for each what quire serve would have the server's template made of: one line of
 * JSON, or "null" if it would not watch the request.
 */
#define _POSIX_C_SOURCE 200809L
#include "serve/convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        char *space = strchr(line, ' ');
        if (!space) return 2;
        size_t size = (size_t)(n - (space + 1 - line)), made = 0;
        body *b = body_read(space + 1, size), *chat = NULL;
        char *text = NULL;
        if (b) text = *line == 'm' ? convert_messages(b, &made) : convert_responses(b, &made);
        if (text) chat = body_read(text, made);
        puts(chat && body_kind(chat, true) == BODY_CHAT ? text : "null");
        fflush(stdout);
        free(text);
        body_free(chat);
        body_free(b);
    }
    free(line);
    return 0;
}
