/* SPDX-License-Identifier: MIT */
/* quire: the command. Finds the sub-command and gives it the rest of the line. */
#include <quire/quire.h>

#include "commands.h"

#include "common/tool.h"

#include <stdlib.h>
#include <string.h>

/* QUIRE_WITH_DEVICE: what works with the device for llama.cpp, which is for Linux. */
static const tool_entry commands[] = {
#ifdef QUIRE_WITH_DEVICE
    {"run", "start a llama.cpp program with a compressed KV cache", cmd_run},
#endif
    {"plan", "show which context lengths of a model fit into memory under which policy", cmd_plan},
#ifdef QUIRE_WITH_DEVICE
    {"stat", "show the caches of running programs and the memory they save", cmd_stat},
#endif
    {"cache", "show or convert prompt-cache files of mlx-lm", cmd_cache},
    {"codecs", "list the codecs and presets, with their bits per value", cmd_codecs},
    {"bench", "time attention on this machine and compare it with memory reads and ggml", cmd_bench},
#ifdef QUIRE_WITH_DEVICE
    {"calibrate", "record a profile of a model, which lets K use one bit less", cmd_calibrate},
    {"eval", "measure with llama.cpp how much cache policies change the output of real models", cmd_eval},
#endif
    {"rows", "measure the error of policies on recorded rows of a real model", cmd_rows},
#ifdef QUIRE_WITH_SERVE
    {"serve", "start a llama-server that restores prompts that were computed before", cmd_serve},
#endif
#ifdef QUIRE_WITH_STORE
    {"store", "manage a store of pages, and share llama-server slots through it", cmd_store},
#endif
};

#define N_COMMANDS (sizeof commands / sizeof commands[0])

static const char brief[] = "attention over a KV cache kept in 2 to 8 bits per value";
static const char examples[] =
    "  quire plan model.gguf                               what fits into memory, and what it costs\n"
#ifdef QUIRE_WITH_DEVICE
    "  quire run -- llama-server -m model.gguf -c 32768    the same server with a smaller cache\n"
#endif
    "  quire codecs --presets                              the presets and their codecs\n"
    "  quire bench --context 32K                           time one decode step at 32K tokens\n";

static const tool_entry *find_command(const char *name)
{
    return tool_find(commands, N_COMMANDS, name);
}

static int unknown_command(const char *command, const char *name)
{
#ifndef QUIRE_WITH_DEVICE
    static const char *const of_device[] = {"run", "stat", "calibrate", "eval"};
    for (size_t i = 0; i < sizeof of_device / sizeof of_device[0]; i++)
        if (strcmp(of_device[i], name) == 0)
            return tool_usage(command, "\"%s\" needs Quire's device for llama.cpp, which is for Linux only",
                              name);
#endif
    return tool_usage(command, "unknown command \"%s\"; quire --help lists the commands", name);
}

/* -------------------------------------------------------------------- help */

static void print_help(FILE *file)
{
    fprintf(file, "usage: quire COMMAND [OPTIONS]\n\n%c%s.\n\ncommands:\n", brief[0] - 32, brief + 1);
    for (size_t i = 0; i < N_COMMANDS; i++) fprintf(file, "  %-10s %s\n", commands[i].name, commands[i].text);
    fprintf(file,
            "\n  --help     print this text; quire COMMAND --help explains a command\n"
            "  --version  print the library version and the instruction set in use on this machine\n"
            "\nexamples:\n%s\nExit codes: %s.\n",
            examples, TOOL_EXIT_CODES);
}

static int ask_for_help(const tool_entry *c)
{
    static char help[] = "--help";
    char name[32], *line[] = {name, help, NULL};
    snprintf(name, sizeof name, "%s", c->name);
    tool_help_brief = c->text;
    return c->run(2, line);
}

static void print_man(void)
{
    tool_man_head("quire", brief);
    printf(".SH SYNOPSIS\n.B quire\nCOMMAND [OPTIONS]\n.SH COMMANDS\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        printf(".TP\n.BR quire\\-%s (1)\n", commands[i].name);
        tool_man_text(commands[i].text);
        printf("\n");
    }
    printf(".SH EXIT STATUS\n");
    tool_man_text(TOOL_EXIT_CODES);
    printf(".\n.SH EXAMPLES\n.nf\n");
    tool_man_text(examples);
    printf(".fi\n");
    tool_man_tail();
}

/* After an option with a value, and for plain words: files. After the "--" of run: another command line. */
static void print_completion(void)
{
    printf("# bash completion of quire; made by `quire help --completion`\n_quire() {\n"
           "    local i word=${COMP_WORDS[COMP_CWORD]} words values rest\n"
           "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        mapfile -t COMPREPLY < <(compgen -W '");
    for (size_t i = 0; i < N_COMMANDS; i++) printf("%s ", commands[i].name);
    printf("help --help --version' -- \"$word\")\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n");
    tool_help_form = TOOL_COMPLETION;
    for (size_t i = 0; i < N_COMMANDS; i++) ask_for_help(&commands[i]);
    printf(
        "        *) return ;;\n    esac\n"
        "    if [ \"$rest\" = 1 ]; then\n"
        "        for ((i = 2; i < COMP_CWORD; i++)); do\n"
        "            if [ \"${COMP_WORDS[i]}\" = -- ] && type _command_offset >/dev/null 2>&1; then\n"
        "                _command_offset $((i + 1))\n                return\n            fi\n        done\n    fi\n"
        "    if [[ $word == -* && \" $values \" != *\" ${COMP_WORDS[COMP_CWORD - 1]} \"* ]]; then\n"
        "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
        "    else\n        mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n    fi\n}\n"
        "complete -o filenames -F _quire quire\n");
}

/* quire help [--man | --completion] [COMMAND] */
static int help(int argc, char **argv)
{
    int at = 1;
    if (argc > at && strcmp(argv[at], "--completion") == 0) {
        print_completion();
        return TOOL_OK;
    }
    if (argc > at && strcmp(argv[at], "--man") == 0) {
        tool_help_form = TOOL_MAN;
        at++;
    }
    const tool_entry *c = argc > at ? find_command(argv[at]) : NULL;
    if (argc > at && !c) return unknown_command("help", argv[at]);
    if (c) return ask_for_help(c);
    if (tool_help_form == TOOL_MAN)
        print_man();
    else
        print_help(stdout);
    return TOOL_OK;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    const tool_entry *c = find_command(name);
    if (quire_isa_use_environment())
        return tool_usage("", "QUIRE_ISA is \"%s\", which is not an instruction set", getenv("QUIRE_ISA"));
    if (c) return c->run(argc - 1, argv + 1);
    if (strcmp(name, "help") == 0) return help(argc - 1, argv + 1);
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
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
    return unknown_command("", name);
}
