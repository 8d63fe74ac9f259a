/* SPDX-License-Identifier: MIT */
/* tool: what the sub-commands of `quire` share: exit codes, options, numbers in text. */
#ifndef QUIRE_TOOLS_TOOL_H
#define QUIRE_TOOLS_TOOL_H

#include <quire/quire.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { TOOL_OK = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

/* One sub-command per file. argv[0] is the name of the command; the result is the exit code. */
int cmd_codecs(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_calibrate(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_rows(int argc, char **argv);
int cmd_store(int argc, char **argv); /* only with QUIRE_WITH_STORE */

/* One sentence on stderr, after "quire <command>: ". Return TOOL_USAGE and TOOL_FAILED. */
__attribute__((format(printf, 2, 3))) int tool_usage(const char *command, const char *format, ...);
__attribute__((format(printf, 2, 3))) int tool_failed(const char *command, const char *format, ...);

/* An option of a command. set() takes the value (NULL for a switch) and returns NULL, or what it wants instead:
 * "a number from 1 to 1024". */
typedef struct tool_option {
    const char *name;  /* "--threads" */
    const char *value; /* what stands for the value in the help, or NULL: a switch */
    const char *text;  /* for the help; '\n' begins a new line */
    const char *(*set)(void *ctx, const char *value);
} tool_option;

/*
 * Takes options ("--name value", "--name=value", "--switch") and gives every other word to set_name (NULL: there are
 * none). Returns -1 to go on, or the exit code: after an error, which it has told, and after --help, for which it has
 * printed usage, the options and examples.
 */
typedef struct tool_command {
    const char *name, *usage, *about, *examples;
    const tool_option *options;
    size_t n_options;
    const char *(*set_name)(void *ctx, const char *word);
} tool_command;

int tool_parse(const tool_command *command, int argc, char **argv, void *ctx);

/* A whole number with an optional K or M (1024, 1024^2), followed by nothing but the character `end` or the end of the
 * text. *next is where it stopped. */
bool tool_number(const char *text, char end, uint64_t min, uint64_t max, uint64_t *out, const char **next);
bool tool_real(const char *text, double min, double max, double *out);

/* Copies what comes before the next comma into word and moves *text past it; false at the end or if it does not fit. */
bool tool_word(const char **text, char *word, size_t size);

/* EIO: the file cannot be read. */
quire_status tool_load_profile(quire_profile **out, const char *path);

/* A string between quotes, as JSON wants it. */
void tool_json_string(FILE *file, const char *text);

#endif
