/* SPDX-License-Identifier: MIT */
/* quire eval: hands over to eval/run.py, which measures what caches cost on real models. */
#define _POSIX_C_SOURCE 200809L
#include "place.h"
#include "tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cmd_eval(int argc, char **argv)
{
    char script[PLACE_SIZE], python[PLACE_SIZE];
    if (!place_shared(script, "eval/run.py")) return tool_failed("eval", "eval/run.py is not there");
    if (!place_program(python, NULL, "python3")) return tool_failed("eval", "it needs python3");
    char **words = calloc((size_t)argc + 2, sizeof *words);
    if (!words) return tool_failed("eval", "no memory");
    words[0] = python;
    words[1] = script;
    for (int i = 1; i < argc; i++) words[i + 1] = argv[i];
    execv(python, words);
    free(words);
    return tool_failed("eval", "%s: %s", python, strerror(errno));
}
