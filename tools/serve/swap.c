/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/swap.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of an answer of the server about a slot, and about all of them. */
#define MOST_ANSWER (1u << 20)
#define MOST_ABOUT_SLOTS (64u << 20)

/* Files that the server was asked to write and that may come after the wait for them has ended. */
enum { MOST_LATE = 16 };

static struct {
    pthread_mutex_t lock;
    char paths[MOST_LATE][SWAP_PATH];
    unsigned n;
} late = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void expect_late(const char *path)
{
    pthread_mutex_lock(&late.lock);
    snprintf(late.paths[late.n++ % MOST_LATE], SWAP_PATH, "%s", path);
    pthread_mutex_unlock(&late.lock);
}

static void remove_late(void)
{
    pthread_mutex_lock(&late.lock);
    for (unsigned i = 0; i < MOST_LATE; i++)
        if (*late.paths[i] && !unlink(late.paths[i])) *late.paths[i] = 0;
    pthread_mutex_unlock(&late.lock);
}

static unsigned ask(const swap *s, const char *method, const char *target, const char *text, size_t most,
                    char **answer)
{
    size_t n;
    const exchange_request r = {.method = method,
                                .target = target,
                                .headers = s->headers,
                                .body = text,
                                .body_size = text ? strlen(text) : 0,
                                .has_body = text,
                                .client = -1,
                                .timeout_ms = s->timeout_ms};
    return upstream_ask(s->to, &r, most, answer, &n);
}

static bool act(const swap *s, uint32_t slot, const char *action, const char *name)
{
    char target[64], text[96], *answer;
    snprintf(target, sizeof target, "/slots/%u?action=%s", slot, action);
    snprintf(text, sizeof text, "{\"filename\":\"%s\"}", name);
    unsigned status = ask(s, "POST", target, text, MOST_ANSWER, &answer);
    free(answer);
    return status == 200;
}

void swap_make_name(char name[SWAP_NAME])
{
    static _Atomic unsigned long long last;
    remove_late();
    snprintf(name, SWAP_NAME, "slot-%llu.bin", atomic_fetch_add(&last, 1) + 1);
}

void swap_path(const swap *s, const char *name, char path[SWAP_PATH])
{
    snprintf(path, SWAP_PATH, "%s/%s", s->folder, name);
}

void swap_remove(const char *folder, const char *name)
{
    char path[SWAP_PATH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
}

bool swap_out(const swap *s, uint32_t slot, char name[SWAP_NAME])
{
    char path[SWAP_PATH];
    swap_make_name(name);
    if (act(s, slot, "save", name)) return true;
    swap_path(s, name, path);
    unlink(path);
    expect_late(path); /* a server that is slow may still make it */
    return false;
}

bool swap_in(const swap *s, uint32_t slot, const char *name)
{
    return (!s->erases || act(s, slot, "erase", name)) && act(s, slot, "restore", name);
}

bool swap_needs_erasing(const swap *s)
{
    char *answer;
    unsigned status = ask(s, "GET", "/slots", NULL, MOST_ABOUT_SLOTS, &answer);
    /* Without an answer (--no-slots) nobody knows. */
    bool drafts = status != 200 || !answer || strstr(answer, "\"speculative\":true");
    free(answer);
    return drafts;
}
