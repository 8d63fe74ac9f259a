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
#define TOOL_EXIT_CODES "0 success, 1 failure, 2 wrong command line"

/* One sub-command per file. argv[0] is the name of the command; the result is the exit code. */
int cmd_codecs(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_calibrate(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_rows(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_stat(int argc, char **argv);
int cmd_cache(int argc, char **argv);
int cmd_store(int argc, char **argv); /* only with QUIRE_WITH_STORE */

/* One sentence on stderr, after "quire <command>: ". Return TOOL_USAGE and TOOL_FAILED. */
__attribute__((format(printf, 2, 3))) int tool_usage(const char *command, const char *format, ...);
__attribute__((format(printf, 2, 3))) int tool_failed(const char *command, const char *format, ...);

/* An option of a command. set() takes the value (NULL for a switch) and returns NULL, or what it wants instead:
 * "a number from 1 to 1024". Most need none: a switch sets a bool of the command's options, a word is kept as it is. */
typedef struct tool_option {
    const char *name;  /* "--threads" */
    const char *value; /* what stands for the value in the help, or NULL: a switch */
    const char *text;  /* for the help; '\n' begins a new line */
    const char *(*set)(void *ctx, const char *value);
    size_t at; /* without set(): where in ctx the bool or the word is */
} tool_option;

#define TOOL_FLAG(type, member) .at = _Generic(((type *)0)->member, bool : offsetof(type, member))
#define TOOL_WORD(type, member) .at = _Generic(((type *)0)->member, const char * : offsetof(type, member))

/*
 * Takes options ("--name value", "--name=value", "--switch") and gives every other word to set_name (NULL: there are
 * none). Returns -1 to go on, or the exit code: after an error, which it has told, and after --help, for which it has
 * printed usage, the options and examples.
 */
typedef struct tool_command {
    const char *name, *usage, *about, *examples;
    const char *exit_codes; /* NULL: the usual ones */
    const tool_option *options;
    size_t n_options;
    const char *(*set_name)(void *ctx, const char *word);
    /* What follows "--", or the first word that is no option, belongs to another program; NULL: there is none. */
    void (*set_rest)(void *ctx, int argc, char **argv);
} tool_command;

int tool_parse(const tool_command *command, int argc, char **argv, void *ctx);

/* What --help prints: text for people, a page for man, or a line of the completion of bash. All from the same tables. */
typedef enum tool_form { TOOL_TEXT, TOOL_MAN, TOOL_COMPLETION } tool_form;
extern tool_form tool_help_form;
int tool_help(const tool_command *command); /* in that form; TOOL_OK */
const char *tool_brief(const char *name);   /* what a command is, in one line */
void tool_man_head(const char *name, const char *brief);
void tool_man_text(const char *text); /* lines of it, what man acts on made harmless */
void tool_man_tail(void);             /* exit codes, the other pages */

/* A whole number with an optional K, M or G (powers of 1024), followed by nothing but the character `end` or the end of the
 * text. *next is where it stopped. */
bool tool_number(const char *text, char end, uint64_t min, uint64_t max, uint64_t *out, const char **next);
bool tool_real(const char *text, double min, double max, double *out);

/* Copies what comes before the next comma into word and moves *text past it; false at the end or if it does not fit. */
bool tool_word(const char **text, char *word, size_t size);

/* "352 MiB", "1.2 GiB": three digits. */
enum { TOOL_BYTES_SIZE = 32 };
const char *tool_bytes(char *text, double bytes);

/* EIO: the file cannot be read. */
quire_status tool_load_profile(quire_profile **out, const char *path);

/* A string between quotes, as JSON wants it. */
void tool_json_string(FILE *file, const char *text);

#endif
