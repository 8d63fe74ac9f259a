/* SPDX-License-Identifier: MIT */
/* Processes that use one store while another one damages its files. They are told what to do over pipes, one letter and a number
 * at a time, and answer with a number. */
#ifndef QUIRE_TESTS_DAMAGE_KIT_H
#define QUIRE_TESTS_DAMAGE_KIT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define DAMAGE_TEXTS 6u
#define DAMAGE_PAGES 4u
#define DAMAGE_PAGE_BYTES 9000u
#define DAMAGE_ALL (DAMAGE_TEXTS * DAMAGE_PAGES)

/* What they can be told. */
enum {
    DAMAGE_LOAD = 'l',     /* one text; the answer: pages, and DAMAGE_REASON times the reason of a miss */
    DAMAGE_LOAD_ALL = 'L', /* pages */
    DAMAGE_SAVE = 's',     /* one text */
    DAMAGE_SAVE_ALL = 'S',
    DAMAGE_PLACES = 'p', /* of a text's pages: slab and offset of each */
    DAMAGE_FLUSH = 'F',  /* nothing is left to be written */
    DAMAGE_FORGET = 'D', /* drops every connection to the index, with all that is cached of it */
    DAMAGE_CHECK =
        'X', /* saves a page that nobody has; then has every byte of the index read that means something */
    DAMAGE_TRIM = 'T', /* evicts pages that were saved so */
    DAMAGE_WHOLE =
        'W', /* waits until the index is whole and knows of everything; 0: it did not come to that */
    DAMAGE_REOPEN = 'O', /* closes and opens the store */
    DAMAGE_MISSES = 'M'  /* the number of misses for each reason; the end */
};
#define DAMAGE_REASON 1000

/* The process; returns its exit status. */
int damage_work(const char *dir);

typedef struct damage_child {
    pid_t pid;
    FILE *to, *from;
} damage_child;

extern char damage_last[700]; /* what was done last: for messages */

/* Runs this program again with "worker" and the directory. */
void damage_begin(damage_child *c, const char *dir);
void damage_order(damage_child *c, char what, uint64_t number);
long damage_answer(damage_child *c);
long damage_ask(damage_child *c, char what, uint64_t number);
/* Two of them at the same time; the smaller answer. */
long damage_ask_both(damage_child *c, char what, uint64_t number);

#endif
