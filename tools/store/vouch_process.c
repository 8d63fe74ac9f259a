/* SPDX-License-Identifier: MIT */
/* vouch_process: flags of a llama-server on this machine that make rows depend on more than the tokens. */
#define _POSIX_C_SOURCE 200809L
#include "llama/host_config.h"
#include "llama/row_flags.h"
#include "store/vouch.h"

#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_WORDS (4u << 20) /* bytes; Linux allows 2 MiB for both together by default */

typedef struct words {
    char *bytes;
    size_t n;
} words;

static bool read_words(words *w, uint64_t pid, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%llu/%s", (unsigned long long)pid, name);
    FILE *f = fopen(path, "rb");
    w->bytes = f ? (char *)malloc(MAX_WORDS + 1) : NULL;
    w->n = w->bytes ? fread(w->bytes, 1, MAX_WORDS, f) : 0;
    bool good = w->bytes && !ferror(f) && w->n < MAX_WORDS;
    if (w->bytes) w->bytes[w->n] = 0;
    if (f) fclose(f);
    return good;
}

static const char *next_word(const words *w, const char *word)
{
    if (!word) return w->n ? w->bytes : NULL;
    word += strlen(word) + 1;
    return word < w->bytes + w->n ? word : NULL;
}

static bool matters(const store_options *o, row_flag_kind kind, const char *value, bool is_rotation_open)
{
    return kind == ROW_FLAG_ALWAYS || kind == ROW_FLAG_SWITCH ||
           (kind == ROW_FLAG_NUMBER && !row_flag_is_off(value)) ||
           (kind == ROW_FLAG_ADAPTER && !o->adapter) || (kind == ROW_FLAG_ROPE && !o->rope) ||
           (kind == ROW_FLAG_OPEN && is_rotation_open && !row_flag_is_off(value));
}

static int judge_flags(const store_options *o, const words *w, bool is_rotation_open)
{
    bool is_server = false;
    for (const char *word = NULL; (word = next_word(w, word));) {
        const char *slash = strrchr(word, '/'), *equals = strchr(word, '='), *next = next_word(w, word);
        is_server = is_server || strncmp(slash ? slash + 1 : word, "llama", 5) == 0;
        const row_flag *flag = row_flag_of_word(word);
        if (flag && matters(o, flag->kind, equals ? equals + 1 : next, is_rotation_open))
            return tool_failed(o->command, "the server was started with %s, which %s", word, flag->what);
    }
    return is_server
               ? TOOL_OK
               : tool_failed(o->command, "process %llu is not a llama-server", (unsigned long long)o->pid);
}

static int judge_environment(const store_options *o, const words *w, bool is_rotation_open)
{
    for (const char *word = NULL; (word = next_word(w, word));) {
        const char *equals = strchr(word, '=');
        const row_flag *flag = equals ? row_flag_of_variable(word, (int)(equals - word)) : NULL;
        if (flag && !row_flag_is_off(equals + 1) && matters(o, flag->kind, equals + 1, is_rotation_open))
            return tool_failed(o->command, "the server has %s in its environment, which %s", word,
                               flag->what);
    }
    return TOOL_OK;
}

static const char *find_variable(const words *w, const char *name)
{
    size_t n = strlen(name);
    for (const char *word = NULL; (word = next_word(w, word));)
        if (!strncmp(word, name, n) && word[n] == '=') return word + n + 1;
    return NULL;
}

/* The files as the server sees them now; it read them when it began. */
static int judge_config(const store_options *o, const words *environment, bool is_rotation_open)
{
    char root[64], message[PLACE_SIZE + 256];
    struct stat st;
    host_config config;
    int code = TOOL_OK;
    snprintf(root, sizeof root, "/proc/%llu", (unsigned long long)o->pid);
    const struct passwd *user = stat(root, &st) ? NULL : getpwuid(st.st_uid);
    snprintf(root, sizeof root, "/proc/%llu/root", (unsigned long long)o->pid);
    const host_config_place where = {.root = root,
                                     .xdg = find_variable(environment, "XDG_CONFIG_HOME"),
                                     .home = find_variable(environment, "HOME"),
                                     .user_home = user ? user->pw_dir : NULL};
    const char *wrong = host_config_read(&config, &where, message, sizeof message);
    if (wrong) code = tool_failed(o->command, "%s", wrong);
    for (size_t i = 0; !code && i < config.n; i++) {
        const host_config_entry *e = &config.entries[i];
        bool says_no = false;
        const row_flag *flag = host_config_row_flag(e, &says_no);
        if (flag && !says_no && matters(o, flag->kind, e->value, is_rotation_open))
            code = tool_failed(o->command, "the server has %s in %s, which %s", e->key, e->file, flag->what);
    }
    host_config_free(&config);
    return code;
}

int vouch_read_process(const store_options *o, bool is_rotation_open)
{
    words flags = {0}, environment = {0};
    int code;
    if (!read_words(&flags, o->pid, "cmdline") || !read_words(&environment, o->pid, "environ"))
        code = tool_failed(o->command, "the flags of process %llu cannot be read: %s",
                           (unsigned long long)o->pid, strerror(errno));
    else
        code = judge_flags(o, &flags, is_rotation_open);
    if (!code) code = judge_environment(o, &environment, is_rotation_open);
    if (!code) code = judge_config(o, &environment, is_rotation_open);
    free(flags.bytes);
    free(environment.bytes);
    return code;
}
