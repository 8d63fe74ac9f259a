/* SPDX-License-Identifier: MIT */
/* quire eval: hands over to eval/run.py, which measures what caches cost on real models. */
#define _POSIX_C_SOURCE 200809L
#include "place.h"
#include "tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* For man and completion; the options are those of the script. */
static const tool_command command = {
    .name = "eval",
    .usage = "[--suite NAME,...] [--models NAME,...] [--caches NAME,...] [--jobs N] [--list] [--help]",
    .about =
        "Runs the evaluation: perplexity, KL divergence, recorded rows, needles and greedy texts under many caches, with\n"
        "an unmodified llama.cpp. Needs python3 and the source tree or the shipped folder eval. The results are lines of\n"
        "JSON; eval/report.py makes docs/fidelity.md of them.",
    .examples = "  quire eval --list\n"
                "  quire eval --suite headline --models smollm2-135m+f32\n",
};

int cmd_eval(int argc, char **argv)
{
    if (tool_help_form != TOOL_TEXT) return tool_help(&command);
    char script[PLACE_SIZE], python[PLACE_SIZE];
    if (!place_shared(script, "eval/run.py"))
        return tool_failed("eval", "eval/run.py is not there; it comes with the source");
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
