/* SPDX-License-Identifier: MIT */
/* body: the JSON that clients and llama-servers send each other, as far as this program reads and changes it. */
#ifndef QUIRE_TOOLS_SERVE_BODY_H
#define QUIRE_TOOLS_SERVE_BODY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct body body;

/* What a request asks the server to continue. */
typedef enum body_prompt {
    BODY_CHAT,   /* messages, which the server's template makes a text of */
    BODY_TEXT,   /* one text */
    BODY_TOKENS, /* a list of tokens */
    BODY_OTHER   /* images, several prompts, adapters, or anything else that is not watched */
} body_prompt;

/* NULL: not a JSON object, deeper than 256 levels, of more than 4 million values, or out of memory. The bytes are copied. */
body *body_read(const char *bytes, size_t n);
void body_free(body *b);

/* is_chat: of an endpoint that takes messages. */
body_prompt body_kind(const body *b, bool is_chat);
const char *body_text(const body *b, size_t *n);   /* of BODY_TEXT */
uint32_t *body_tokens(const body *b, uint32_t *n); /* of BODY_TOKENS; from malloc(); NULL: out of memory */
/* The object with id_slot and cache_prompt set, and everything else as it was; from malloc(). NULL: out of memory. */
char *body_for_slot(body *b, uint32_t slot, size_t *n);
/* The object without id_slot, or NULL if it has none; from malloc(). */
char *body_without_slot(body *b, size_t *n);

/* {"content":TEXT,"add_special":true,"parse_special":true}; from malloc(). */
char *body_tokenize(const char *text, size_t n, size_t *size);
/* The list of numbers "tokens" of an answer; from malloc(). NULL: there is none. */
uint32_t *body_read_tokens(const char *bytes, size_t size, uint32_t *n);
/* The text "prompt" of an answer; from malloc(). */
char *body_read_prompt(const char *bytes, size_t size, size_t *n);

/* What a server says at the end of an answer. */
typedef struct body_timings {
    uint32_t cache_n, prompt_n, predicted_n; /* tokens: reused, computed, made */
} body_timings;

/* Of the object itself; timings.h finds it in an answer. */
bool body_read_timings(const char *bytes, size_t n, body_timings *out);

#endif
