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

/* A list of commands, of `quire` or of a command that has its own. */
typedef struct tool_entry {
    const char *name, *text;
    int (*run)(int argc, char **argv);
} tool_entry;

const tool_entry *tool_find(const tool_entry *entries, size_t n, const char *name); /* NULL: there is none */

/* One sentence on stderr, after "quire <command>: ". Return TOOL_USAGE and TOOL_FAILED. */
__attribute__((format(printf, 2, 3))) int tool_usage(const char *command, const char *format, ...);
__attribute__((format(printf, 2, 3))) int tool_failed(const char *command, const char *format, ...);

/* The end of a command that has printed its result: TOOL_OK, or tool_failed() if stdout did not take it. */
int tool_finish(const char *command);

typedef enum tool_kind {
    TOOL_KIND_FLAG,
    TOOL_KIND_WORD,
    TOOL_KIND_U32,
    TOOL_KIND_U64,
    TOOL_KIND_BYTES
} tool_kind;

/* An option of a command. Most need no set(): TOOL_FLAG and the macros after it say which member of the command's options the
 * value goes to, and within which limits. set() takes the value (NULL for a switch) and returns NULL, or what it expects
 * instead: "a number from 1 to 1024". */
typedef struct tool_option {
    const char *name;  /* "--threads" */
    const char *value; /* what stands for the value in the help, or NULL: a switch */
    const char *text;  /* for the help; '\n' begins a new line */
    const char *(*set)(void *ctx, const char *value);
    tool_kind kind; /* without set(): what ctx has ... */
    size_t at;      /* ... and where */
    uint64_t min, max;
    const char *wish; /* what is expected. NULL: of a number its limits; a word may be empty */
} tool_option;

#define TOOL_FLAG(type, member) \
    .kind = TOOL_KIND_FLAG, .at = _Generic(((type *)0)->member, bool : offsetof(type, member))
#define TOOL_WORD(type, member) \
    .kind = TOOL_KIND_WORD, .at = _Generic(((type *)0)->member, const char * : offsetof(type, member))
/* A whole number, as tool_number() reads it. */
#define TOOL_NUMBER(type, member, MIN, MAX)        \
    .kind = _Generic(((type *)0)->member, uint32_t \
                     : TOOL_KIND_U32, uint64_t     \
                     : TOOL_KIND_U64),             \
    .at = offsetof(type, member), .min = (MIN), .max = (MAX)
/* A size, as tool_size() reads it. */
#define TOOL_BYTES(type, member, MIN, MAX)       \
    .kind = TOOL_KIND_BYTES,                     \
    .at = _Generic(((type *)0)->member, uint64_t \
                   : offsetof(type, member)),    \
    .min = (MIN), .max = (MAX)

/*
 * Takes options ("--name value", "--name=value", "--switch") and gives every other word to set_name (NULL: there are
 * none, or just the one of TOOL_ONE). Returns -1 to go on, or the exit code: after an error, which it has told, and after
 * --help, for which it has printed usage, the options and examples.
 */
typedef struct tool_command {
    const char *name, *usage, *about, *examples;
    const char *exit_codes;     /* NULL: the usual ones */
    const tool_option *options; /* see TOOL_OPTIONS */
    size_t n_options;
    /* A command that takes one word besides options: what the word is ("file"), and where in ctx it goes; see TOOL_ONE. */
    const char *one;
    size_t one_at;
    const char *(*set_name)(void *ctx, const char *word);
    /* What follows "--", or the first word that is no option, belongs to another program; NULL: there is none. */
    void (*set_rest)(void *ctx, int argc, char **argv);
} tool_command;

#define TOOL_OPTIONS(list) .options = (list), .n_options = sizeof(list) / sizeof((list)[0])
#define TOOL_ONE(type, member, what) \
    .one = (what), .one_at = _Generic(((type *)0)->member, const char * : offsetof(type, member))

int tool_parse(const tool_command *command, int argc, char **argv, void *ctx);

/* What --help prints: text for people, a page for man, or a line of the completion of bash. All from the same tables. */
typedef enum tool_form { TOOL_TEXT, TOOL_MAN, TOOL_COMPLETION } tool_form;
extern tool_form tool_help_form;
extern const char *tool_help_brief;         /* for a page of man: what the command is, in one line */
int tool_help(const tool_command *command); /* in that form; TOOL_OK */
void tool_man_head(const char *name, const char *brief);
void tool_man_text(const char *text); /* lines of it, what man acts on made harmless */
void tool_man_tail(void);             /* exit codes, the other pages */

/* A whole number with an optional K, M, G or T (powers of 1024), followed by nothing but the character `end` or the end
 * of the text. *next is where it stopped. */
bool tool_number(const char *text, char end, uint64_t min, uint64_t max, uint64_t *out, const char **next);
/* Bytes, with decimals if need be: "1.5G". */
bool tool_size(const char *text, uint64_t min, uint64_t max, uint64_t *out);
bool tool_real(const char *text, double min, double max, double *out);

/* Copies what comes before the next comma into word and moves *text past it; false at the end or if it does not fit. */
bool tool_word(const char **text, char *word, size_t size);

/* "352 MiB", "1.2 GiB": three digits. */
enum { TOOL_BYTES_SIZE = 32 };
const char *tool_bytes(char *text, double bytes);

/* Text that others wrote, such as names and answers of servers, made fit for a terminal: control characters, of which terminals take
 * some for commands, become '?'. Returns text. */
char *tool_plain(char *text);

/* A string between quotes, as JSON wants it. */
void tool_json_string(FILE *file, const char *text);

#endif
