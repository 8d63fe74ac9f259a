/* SPDX-License-Identifier: MIT */
/* row_flags: flags and variables of a llama-server with which the rows of a slot depend on more than its tokens. */
#ifndef QUIRE_TOOLS_ROW_FLAGS_H
#define QUIRE_TOOLS_ROW_FLAGS_H

#include <stdbool.h>

typedef enum row_flag_kind {
    ROW_FLAG_ALWAYS, /* whatever its value is */
    ROW_FLAG_SWITCH, /* as a flag; a variable or a file may say no, and there is an opposite: --no-context-shift */
    ROW_FLAG_NUMBER,  /* unless it is 0 */
    ROW_FLAG_ADAPTER, /* unless the adapter is known */
    ROW_FLAG_ROPE,    /* unless what it does to RoPE is known */
    ROW_FLAG_OPEN     /* a number; only if a slot file does not say whether rows are rotated */
} row_flag_kind;

typedef struct row_flag {
    const char *name,
        *variable; /* a flag, or the beginning of flags if it ends in '*'; of the environment; or NULL */
    row_flag_kind kind;
    const char *what; /* it does */
} row_flag;

/* The entry of a word of a command line ("--lora=x"), or of a variable's name ("LLAMA_ARG_LORA"); NULL: rows do not depend on it. */
const row_flag *row_flag_of_word(const char *word);
const row_flag *row_flag_of_variable(const char *name, int n);
/* llama.cpp takes such values for "no". */
bool row_flag_is_off(const char *value);

#endif
