/* SPDX-License-Identifier: MIT */
/* body: the JSON that clients and llama-servers send each other, as far as this program reads and changes it. */
#ifndef QUIRE_TOOLS_SERVE_BODY_H
#define QUIRE_TOOLS_SERVE_BODY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct body body;
struct yyjson_val;

/* What a request asks the server to continue. */
typedef enum body_prompt {
    BODY_CHAT,   /* messages, which the server's template makes a text of */
    BODY_TEXT,   /* one text */
    BODY_TOKENS, /* a list of tokens */
    BODY_OTHER   /* images, several prompts, adapters, or anything else that is not watched */
} body_prompt;

/* NULL: not a JSON object. The bytes are copied. */
body *body_read(const char *bytes, size_t n);
void body_free(body *b);
struct yyjson_val *body_root(const body *b);
/* Of members with the same name the last, as llama-server takes it; NULL: there is none. */
struct yyjson_val *body_member(struct yyjson_val *object, const char *name);

/* is_chat: of an endpoint that takes messages. */
body_prompt body_kind(const body *b, bool is_chat);
const char *body_text(const body *b, size_t *n);   /* of BODY_TEXT */
uint32_t *body_tokens(const body *b, uint32_t *n); /* of BODY_TOKENS; from malloc(); NULL: out of memory */
/*
 * The object with id_slot and cache_prompt set, without n_cache_reuse, which would leave rows in the slot that are not those of its tokens,
 * and everything else as it was; from malloc(). NULL: out of memory.
 */
char *body_for_slot(body *b, uint32_t slot, size_t *n);
/* The object without id_slot and n_cache_reuse, or NULL if it has none of them; from malloc(). */
char *body_without_slot(body *b, size_t *n);

/* {"content":TEXT,"add_special":true,"parse_special":true}; from malloc(). */
char *body_tokenize(const char *text, size_t n, size_t *size);
/* The list of numbers "tokens" of an answer; from malloc(). NULL: there is none. */
uint32_t *body_read_tokens(const char *bytes, size_t size, uint32_t *n);
/* The text "prompt" of an answer; from malloc(). */
char *body_read_prompt(const char *bytes, size_t size, size_t *n);

/* What a server says of one of its slots. */
typedef struct body_slot {
    bool is_working;
    uint32_t n_tokens; /* that it holds; 0 if it was never used */
} body_slot;

/* The list that GET /slots gives; false: it is not one of n slots. */
bool body_read_slots(const char *bytes, size_t size, body_slot *out, uint32_t n);

/* What a server says at the end of an answer. */
typedef struct body_timings {
    uint32_t cache_n, prompt_n, predicted_n; /* tokens: reused, computed, made */
} body_timings;

/* Looks for the last "timings" in the end of an answer, of one object or of a stream of events. */
bool body_read_timings(const char *tail, size_t n, body_timings *out);
/* The same from "usage", of answers without "timings": the last in the end, or the first in the beginning of a stream of /v1/messages. */
bool body_read_usage(const char *head, size_t n_head, const char *tail, size_t n_tail, body_timings *out);

#endif
