/* SPDX-License-Identifier: MIT */
#include "serve/prompt.h"

#include "serve/convert.h"
#include "serve/timings.h"

#include <stdio.h>
#include <stdlib.h>

/* Of an answer that lists tokens. */
#define MOST_ANSWER (256u << 20)

static unsigned post(const prompt_source *from, const char *path, const char *text, size_t size,
                     char **answer, size_t *n)
{
    const exchange_request wire = {.method = "POST",
                                   .target = path,
                                   .headers = from->headers,
                                   .body = text,
                                   .body_size = size,
                                   .has_body = true,
                                   .client = from->client,
                                   .timeout_ms = from->timeout_ms};
    return upstream_ask(from->to, &wire, MOST_ANSWER, answer, n);
}

static char *ask(const prompt_source *from, const char *path, const char *text, size_t size, size_t *n)
{
    char *answer;
    if (post(from, path, text, size, &answer, n) == 200) return answer;
    free(answer);
    return NULL;
}

static uint32_t *tokenize(const prompt_source *from, const char *text, size_t n, uint32_t *n_tokens)
{
    size_t size;
    char *request = body_tokenize(text, n, &size);
    char *answer = request ? ask(from, "/tokenize", request, size, &size) : NULL;
    uint32_t *tokens = answer ? body_read_tokens(answer, size, n_tokens) : NULL;
    free(request);
    free(answer);
    return tokens;
}

/* Of a request in the form of chats. */
static uint32_t *chat_tokens(const prompt_source *from, const char *bytes, size_t size, uint32_t *n)
{
    char *answer = ask(from, "/apply-template", bytes, size, &size);
    char *prompt = answer ? body_read_prompt(answer, size, &size) : NULL;
    uint32_t *tokens = prompt ? tokenize(from, prompt, size, n) : NULL;
    free(answer);
    free(prompt);
    return tokens;
}

static uint32_t *converted_tokens(const prompt_source *from, const body *b, route to, uint32_t *n)
{
    size_t size = 0;
    char *text = to == ROUTE_MESSAGES ? convert_messages(b, &size) : convert_responses(b, &size);
    body *chat = text ? body_read(text, size) : NULL;
    uint32_t *tokens = chat && body_kind(chat, true) == BODY_CHAT ? chat_tokens(from, text, size, n) : NULL;
    body_free(chat);
    free(text);
    return tokens;
}

uint32_t *prompt_tokens(const prompt_source *from, const body *b, route to, const char *bytes, size_t size,
                        uint32_t *n)
{
    if (to == ROUTE_MESSAGES || to == ROUTE_RESPONSES) return converted_tokens(from, b, to, n);
    switch (body_kind(b, to == ROUTE_CHAT)) {
    case BODY_TOKENS: return body_tokens(b, n);
    case BODY_TEXT: bytes = body_text(b, &size); return tokenize(from, bytes, size, n);
    case BODY_CHAT: return chat_tokens(from, bytes, size, n);
    case BODY_OTHER: break;
    }
    return NULL;
}

bool prompt_compute(const prompt_source *from, const uint32_t *tokens, uint32_t n, uint32_t slot, bool reuse,
                    body_timings *t)
{
    size_t size;
    timings counted = {0};
    char *text = body_compute(tokens, n, slot, reuse, &size);
    char *answer = text ? ask(from, "/completion", text, size, &size) : NULL;
    if (answer) timings_read(&counted, answer, size);
    *t = counted.found;
    free(text);
    free(answer);
    return counted.is_found && t->cache_n + t->prompt_n == n;
}

bool prompt_is_refused(const prompt_source *from)
{
    static const char text[] = "{\"content\":\"\"}";
    char *answer;
    size_t n;
    unsigned status = post(from, "/tokenize", text, sizeof text - 1, &answer, &n);
    free(answer);
    return status == 401 || status == 403;
}
