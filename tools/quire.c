/* SPDX-License-Identifier: MIT */
/* quire: the command. Finds the sub-command and gives it the rest of the line. */
#include <quire/quire.h>

#include "tool.h"

#include <string.h>

static const struct {
    const char *name, *text;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"codecs", "the codecs, their bits per value and what they exchange rows with", cmd_codecs},
    {"bench", "times attention on this machine, beside reading the same bytes and beside ggml", cmd_bench},
    {"calibrate", "records a profile of a model, which lets K take one bit less", cmd_calibrate},
    {"eval", "measures what caches cost on real models, with llama.cpp", cmd_eval},
    {"rows", "what policies do to recorded rows of a real model", cmd_rows},
#ifdef QUIRE_WITH_STORE
    {"store", "pages that outlive the process: looks after them, shares slots of llama-server", cmd_store},
#endif
};

#define N_COMMANDS (sizeof commands / sizeof commands[0])

static void print_help(FILE *file)
{
    fprintf(file,
            "usage: quire COMMAND [OPTIONS]\n\nAttention over a KV cache kept in 2 to 8 bits per value.\n\n"
            "commands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++) fprintf(file, "  %-10s %s\n", commands[i].name, commands[i].text);
    fprintf(file, "\n  --help     this text; quire COMMAND --help tells about a command\n"
                  "  --version  the version of the library and the instruction set it uses here\n"
                  "\nexamples:\n"
                  "  quire codecs                       what there is\n"
                  "  quire codecs --json r4 a4g64       two of them, one JSON object per line\n"
                  "  quire bench --context 32K          decode with the usual codecs\n"
                  "  quire bench --help\n"
                  "\nExit codes: 0 done, 1 failed, 2 the command line is wrong.\n");
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (argc > 2 && strcmp(name, "help") == 0) {
        static char help[] = "--help";
        argv[1] = argv[2];
        argv[2] = help;
        argc = 3;
        name = argv[1];
    }
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        return TOOL_OK;
    }
    if (strcmp(name, "--version") == 0) {
        printf("quire %s (%s)\n", quire_version(), quire_isa_in_use());
        return TOOL_OK;
    }
    if (argc < 2) {
        print_help(stderr);
        return TOOL_USAGE;
    }
    return tool_usage("", "there is no command \"%s\"; quire --help lists them", name);
}
