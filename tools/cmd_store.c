/* SPDX-License-Identifier: MIT */
/* quire store: looks after a store of pages, and moves slots of llama-server into and out of it. */
#include "store_options.h"

#include <string.h>

static const struct {
    const char *name, *text;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"stat", "objects, bytes, cap", store_stat},
    {"ls", "the objects on disk, one per line", store_ls},
    {"verify", "reads every object on disk and checks it", store_verify},
    {"gc", "removes what is damaged, old or too much", store_gc},
    {"export", "writes the objects on disk into one file", store_export},
    {"import", "puts the objects of such a file on disk", store_import},
    {"put-slot", "a slot that llama-server has saved becomes pages", store_put_slot},
    {"get-slot", "pages become a slot that llama-server can restore", store_get_slot},
};

#define N_COMMANDS (sizeof commands / sizeof commands[0])

static void print_help(FILE *file)
{
    fprintf(
        file,
        "usage: quire store COMMAND [OPTIONS]\n\nLooks after a store of pages (docs/store.md).\n\ncommands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++) fprintf(file, "  %-10s %s\n", commands[i].name, commands[i].text);
    fprintf(file, "\n  --help     this text; quire store COMMAND --help tells about a command\n"
                  "\nexamples:\n"
                  "  quire store stat --dir /var/cache/quire\n"
                  "  quire store verify --dir /var/cache/quire --json\n"
                  "  quire store get-slot --help\n");
}

int cmd_store(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_help(stdout);
        return TOOL_OK;
    }
    if (argc < 2) {
        print_help(stderr);
        return TOOL_USAGE;
    }
    return tool_usage("store", "there is no command \"%s\"; quire store --help lists them", name);
}
