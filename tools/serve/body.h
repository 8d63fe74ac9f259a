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

/* NULL: not a JSON object, deeper than 256 levels, of more than 4 million values, or out of memory. The bytes are copied. */
body *body_read(const char *bytes, size_t n);
void body_free(body *b);
struct yyjson_val *body_root(const body *b);
/* Of members with the same name the last, as llama-server takes it; NULL: there is none. */
struct yyjson_val *body_member(struct yyjson_val *object, const char *name);

/* is_chat: of an endpoint that takes messages. */
body_prompt body_kind(const body *b, bool is_chat);
const char *body_text(const body *b, size_t *n);   /* of BODY_TEXT */
uint32_t *body_tokens(const body *b, uint32_t *n); /* of BODY_TOKENS; from malloc(); NULL: out of memory */
/* What a server is told about slots, in place of what the client wrote. n_cache_reuse is left out in any case: it would leave rows in the
 * slot that are not those of its tokens. */
typedef enum body_reuse { BODY_REUSES_AS_IT_SAYS, BODY_REUSES, BODY_REUSES_NOTHING } body_reuse;
enum { BODY_ANY_SLOT = -1 };
/* The object with id_slot and cache_prompt set, and everything else as it was; from malloc(). NULL: out of memory. */
char *body_for_slot(body *b, int32_t slot, body_reuse reuse, size_t *n);
/* It asks for one answer, which one slot can give. */
bool body_is_alone(const body *b);

/* A request that computes these tokens in a slot and makes none; from malloc(). */
char *body_compute(const uint32_t *tokens, uint32_t n, uint32_t slot, bool reuse, size_t *size);
/* {"content":TEXT,"add_special":true,"parse_special":true}; from malloc(). */
char *body_tokenize(const char *text, size_t n, size_t *size);
/* The list of numbers "tokens" of an answer; from malloc(). NULL: there is none. */
uint32_t *body_read_tokens(const char *bytes, size_t size, uint32_t *n);
/* The text "prompt" of an answer; from malloc(). */
char *body_read_prompt(const char *bytes, size_t size, size_t *n);

/* What a server says at the end of an answer. */
typedef struct body_timings {
    uint32_t cache_n, prompt_n, predicted_n; /* tokens: reused, computed, made */
    double prompt_ms;                        /* that computing them took; 0: not said */
} body_timings;

/* Of the object "timings" of an answer; timings.h finds it. */
bool body_read_timings(const char *text, size_t n, body_timings *out);
/* Of the object "usage" of answers without "timings". false: it does not say how long the prompt was; predicted_n is set if it says that. */
bool body_read_usage(const char *text, size_t n, body_timings *out);

#endif
