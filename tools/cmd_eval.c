/* SPDX-License-Identifier: MIT */
/* quire eval: hands over to eval/run.py, which measures what caches cost on real models. */
#define _POSIX_C_SOURCE 200809L
#include "commands.h"

#include "common/place.h"
#include "common/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* For man and completion; the options are those of the script. */
static const tool_command command = {
    .name = "eval",
    .usage = "[--suite NAME,...] [--models NAME,...] [--caches NAME,...] [--jobs N] [--list] [--help]",
    .about =
        "Runs the evaluation with an unmodified llama.cpp: perplexity, KL divergence, recorded rows, needle retrieval and\n"
        "greedy texts under many cache policies. It needs python3 and the folder eval of the source tree or of the\n"
        "installation. The results are lines of JSON; eval/report.py makes docs/fidelity.md from them.",
    .examples = "  quire eval --list\n"
                "  quire eval --suite headline --models smollm2-135m+f32\n",
};

int cmd_eval(int argc, char **argv)
{
    if (tool_help_form != TOOL_TEXT) return tool_help(&command);
    char script[PLACE_SIZE], python[PLACE_SIZE];
    if (!place_shared(script, "eval/run.py"))
        return tool_failed("eval", "eval/run.py was not found; it comes with the source");
    if (!place_program(python, NULL, "python3")) return tool_failed("eval", "python3 was not found in PATH");
    char **words = calloc((size_t)argc + 2, sizeof *words);
    if (!words) return tool_failed("eval", "out of memory");
    words[0] = python;
    words[1] = script;
    for (int i = 1; i < argc; i++) words[i + 1] = argv[i];
    execv(python, words);
    free(words);
    return tool_failed("eval", "%s: %s", python, strerror(errno));
}
