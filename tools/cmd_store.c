/* SPDX-License-Identifier: MIT */
/* quire store: looks after a store of pages, and moves slots of llama-server into and out of it. */
#include "commands.h"

#include "store/options.h"

#include <string.h>

static const tool_entry commands[] = {
    {"stat", "show the number of objects, their size and the limit", store_stat},
    {"ls", "list the objects on disk, or count those of the remote tier", store_ls},
    {"du", "show how much each tenant, model or namespace has on disk", store_du},
    {"rm", "remove a tenant's, a model's or a namespace's objects from disk", store_rm},
    {"quota", "limit how much a tenant may have on disk", store_quota},
    {"doctor", "look for what is wrong with a directory or a remote tier, and say what to do", store_doctor},
    {"verify", "read and check every object on disk", store_verify},
    {"gc", "remove damaged objects, and old or excess ones if you ask for it", store_gc},
    {"export", "write the objects on disk to one file", store_export},
    {"import", "read the objects of such a file into the store", store_import},
    {"put-slot", "store a slot that llama-server saved, as pages", store_put_slot},
    {"get-slot", "write a slot that llama-server can restore, from pages", store_get_slot},
};

#define N_COMMANDS (sizeof commands / sizeof commands[0])

/* Help in every form, of a command that has commands. */
static int help(void)
{
    char about[2048] = "Manages a store of pages (docs/store.md).\n\nCommands, each with its own --help:\n";
    size_t n = strlen(about);
    for (size_t i = 0; i < N_COMMANDS && n < sizeof about; i++)
        n += (size_t)snprintf(about + n, sizeof about - n, "%s  %-10s %s", i ? "\n" : "", commands[i].name,
                              commands[i].text);
    tool_command command = {
        .name = "store",
        .usage = "COMMAND [OPTIONS]",
        .about = about,
        .examples = "  quire store stat --dir /var/cache/quire\n"
                    "  quire store verify --dir /var/cache/quire --json\n"
                    "  quire store get-slot --help\n",
    };
    return tool_help(&command);
}

int cmd_store(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    const tool_entry *c = tool_find(commands, N_COMMANDS, name);
    if (c) return c->run(argc - 1, argv + 1);
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) return help();
    if (argc < 2) return tool_usage("store", "give a command; quire store --help lists the commands");
    return tool_usage("store", "unknown command \"%s\"; quire store --help lists the commands", name);
}
