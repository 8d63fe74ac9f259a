/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "llama/host_config.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_BYTES (1u << 20)
enum { MOST_KEY = 200 };

/* Lines of one file that count, before they are ordered. */
typedef struct part {
    host_config_entry entry;
    bool is_default; /* of the section "default", which is applied after "*" */
    size_t line;
} part;

typedef struct parsing {
    const char *file;
    char *at;
    part *parts;
    size_t n, line;
    enum { SECTION_DEFAULT, SECTION_ALL, SECTION_OTHER } section;
} parsing;

/* ------------------------------------------------------------------- places */

host_config_place host_config_here(void)
{
    const struct passwd *user = getpwuid(getuid());
    return (host_config_place){.root = "",
                               .xdg = getenv("XDG_CONFIG_HOME"),
                               .home = getenv("HOME"),
                               .user_home = user ? user->pw_dir : NULL};
}

static bool is_said(const char *text)
{
    return text && *text;
}

/* NULL, or why not. */
static const char *find_places(host_config *c, const host_config_place *where)
{
    const char *home = is_said(where->home) ? where->home : where->user_home;
    const char *base = is_said(where->xdg) ? where->xdg : home;
    if (*where->root && base && *base != '/') return "has no absolute path";
    int n = snprintf(c->path[0], PLACE_SIZE, "%s/etc/llama.cpp/config.ini", where->root), k = 0;
    if (is_said(where->xdg))
        k = snprintf(c->path[1], PLACE_SIZE, "%s%s/llama.cpp/config.ini", where->root, where->xdg);
    else if (home)
        k = snprintf(c->path[1], PLACE_SIZE, "%s%s/.config/llama.cpp/config.ini", where->root, home);
    return n < PLACE_SIZE && k < PLACE_SIZE ? NULL : "has a path that is too long";
}

/* -------------------------------------------------------------------- lines */

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_of_key(char c)
{
    return is_letter(c) || (c >= '0' && c <= '9') || c == '.' || c == '-';
}

static char *skip_blanks(char *at)
{
    return at + strspn(at, " \t");
}

/* Blanks and a comment, up to the end of the line; false: there is something else. */
static bool end_line(parsing *p)
{
    p->at = skip_blanks(p->at);
    if (*p->at == ';' || *p->at == '#') p->at += strcspn(p->at, "\r\n");
    if (*p->at && *p->at != '\r' && *p->at != '\n') return false;
    if (*p->at == '\r' && p->at[1] == '\n') p->at++;
    if (*p->at) p->at++;
    p->line++;
    return true;
}

/* A section that comes again begins anew. */
static void drop_section(parsing *p, bool is_default)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++)
        if (p->parts[i].is_default != is_default) p->parts[n++] = p->parts[i];
    p->n = n;
}

static const char *read_section(parsing *p)
{
    char *name = skip_blanks(p->at + 1), *end = strchr(name, ']');
    if (!end || end == name) return "a section has no name";
    size_t n = (size_t)(end - name), bare = n;
    while (bare && strchr(" \t\r\n", name[bare - 1])) bare--;
    bool is_default = bare == 7 && !strncmp(name, "default", 7), is_all = bare == 1 && *name == '*';
    /* llama.cpp takes the blanks for a part of the name; another version may not. */
    if (bare < n && (is_default || is_all)) return "the name of a section ends in blanks";
    p->section = is_default ? SECTION_DEFAULT : is_all ? SECTION_ALL : SECTION_OTHER;
    if (p->section != SECTION_OTHER) drop_section(p, is_default);
    for (const char *c = name; c < end; c++) p->line += *c == '\n';
    p->at = end + 1;
    return end_line(p) ? NULL : "something stands after the name of a section";
}

static const char *read_key(parsing *p)
{
    char *key = p->at, *end = key;
    while (is_of_key(*end)) end++;
    char *value = skip_blanks(end);
    if (*value != '=') return "a key has no value";
    value = skip_blanks(value + 1);
    size_t n = strcspn(value, ";#\r\n");
    char *rest = value + n;
    while (n && (value[n - 1] == ' ' || value[n - 1] == '\t')) n--;
    p->at = rest;
    part *more = (part *)realloc(p->parts, sizeof *more * (p->n + 1));
    if (!more) return "out of memory";
    p->parts = more;
    size_t line = p->line;
    (void)end_line(p); /* nothing else can stand there; the texts are ended after it was read */
    *end = 0;
    value[n] = 0;
    if (end - key >= MOST_KEY) return "a key is too long";
    if (p->section == SECTION_OTHER || !strcmp(key, "version")) return NULL;
    p->parts[p->n++] =
        (part){.entry = {p->file, key, value}, .is_default = p->section == SECTION_DEFAULT, .line = line};
    return NULL;
}

static const char *read_line(parsing *p)
{
    if (*p->at == '[') return read_section(p);
    if (is_letter(*p->at)) return read_key(p);
    return end_line(p) ? NULL : "a line is neither a key, a section nor a comment";
}

/* "*" before "default", then by the bytes of the key: so llama.cpp goes through them. */
static int compare(const void *a, const void *b)
{
    const part *x = (const part *)a, *y = (const part *)b;
    if (x->is_default != y->is_default) return x->is_default ? 1 : -1;
    int order = strcmp(x->entry.key, y->entry.key);
    return order ? order : x->line < y->line ? -1 : 1;
}

static bool take_parts(host_config *c, parsing *p)
{
    host_config_entry *more =
        p->n ? (host_config_entry *)realloc(c->entries, sizeof *more * (c->n + p->n)) : NULL;
    if (!p->n) return true;
    if (!more) return false;
    c->entries = more;
    qsort(p->parts, p->n, sizeof *p->parts, compare);
    for (size_t i = 0; i < p->n; i++) c->entries[c->n++] = p->parts[i].entry;
    return true;
}

/* -------------------------------------------------------------------- files */

/* *is_absent: there is no such file. errno says why else it is NULL. */
static char *read_bytes(const char *path, bool *is_absent)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int why = errno;
    /* A folder that cannot be entered hides the file from llama.cpp too. */
    *is_absent = fd < 0 && (why == ENOENT || why == ENOTDIR || (why == EACCES && stat(path, &st)));
    errno = why;
    char *bytes = fd >= 0 ? (char *)malloc(MOST_BYTES + 1) : NULL;
    ssize_t n = 0, got = -1;
    if (bytes && (fstat(fd, &st) || !(S_ISREG(st.st_mode) || S_ISCHR(st.st_mode)))) { /* or /dev/null */
        errno = EINVAL;
    } else if (bytes) {
        while (n < (ssize_t)MOST_BYTES && (got = read(fd, bytes + n, MOST_BYTES - (size_t)n)) > 0) n += got;
        if (n == (ssize_t)MOST_BYTES) errno = EFBIG;
    }
    why = errno;
    if (fd >= 0) close(fd);
    errno = why;
    if (got) { /* its end was not seen */
        free(bytes);
        return NULL;
    }
    bytes[n] = 0;
    if (strlen(bytes) == (size_t)n) return bytes;
    free(bytes);
    errno = EILSEQ;
    return NULL;
}

static const char *read_file(host_config *c, int i, char *message, int size)
{
    bool is_absent;
    parsing p = {.file = c->path[i], .line = 1, .section = SECTION_DEFAULT};
    const char *wrong = NULL;
    c->bytes[i] = p.at = read_bytes(c->path[i], &is_absent);
    if (is_absent) return NULL;
    if (!p.at) {
        snprintf(message, (size_t)size, "%s, which llama.cpp takes flags from, cannot be read: %s", p.file,
                 strerror(errno));
        return message;
    }
    while (!wrong && *p.at) wrong = read_line(&p);
    if (!wrong && !take_parts(c, &p)) wrong = "out of memory";
    free(p.parts);
    if (!wrong) return NULL;
    snprintf(message, (size_t)size,
             "%s, which llama.cpp takes flags from, cannot be understood: line %zu: %s", p.file, p.line,
             wrong);
    return message;
}

const char *host_config_read(host_config *c, const host_config_place *where, char *message, int size)
{
    *c = (host_config){0};
    const char *wrong = find_places(c, where);
    if (wrong) {
        snprintf(message, (size_t)size, "llama.cpp's config.ini %s", wrong);
        return message;
    }
    for (int i = 0; !wrong && i < HOST_CONFIG_FILES; i++)
        if (*c->path[i]) wrong = read_file(c, i, message, size);
    return wrong;
}

void host_config_free(host_config *c)
{
    for (int i = 0; i < HOST_CONFIG_FILES; i++) free(c->bytes[i]);
    free(c->entries);
    *c = (host_config){0};
}

/* --------------------------------------------------------------------- keys */

bool host_config_says_yes(const char *value)
{
    static const char *const yes[] = {"on", "enabled", "true", "1"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        if (!strcmp(value, yes[i])) return true;
    return false;
}

bool host_config_is_flag(const host_config_entry *e, const char *flag)
{
    return flag && !strcmp(e->key, flag + strspn(flag, "-"));
}

/* llama.cpp takes the variable with NO_ for another name of the same flag, and does not reverse its value. */
bool host_config_is_variable(const host_config_entry *e, const char *variable)
{
    static const char own[] = "LLAMA_ARG_", no[] = "NO_";
    size_t n = sizeof own - 1, k = sizeof no - 1;
    if (!variable) return false;
    if (!strcmp(e->key, variable)) return true;
    return !strncmp(e->key, own, n) && !strncmp(e->key + n, no, k) && !strncmp(variable, own, n) &&
           !strcmp(e->key + n + k, variable + n);
}

const row_flag *host_config_row_flag(const host_config_entry *e, bool *says_no)
{
    static const char no[] = "no-", no_variable[] = "LLAMA_ARG_NO_";
    char word[MOST_KEY + 16];
    bool is_reversed = false;
    snprintf(word, sizeof word, "--%s", e->key);
    const row_flag *flag = row_flag_of_word(word);
    if (!flag) flag = row_flag_of_word(word + 1);
    if (!flag) flag = row_flag_of_variable(e->key, (int)strlen(e->key));
    if (!flag && !strncmp(e->key, no_variable, sizeof no_variable - 1)) {
        snprintf(word, sizeof word, "LLAMA_ARG_%s", e->key + sizeof no_variable - 1);
        flag = row_flag_of_variable(word, (int)strlen(word));
    }
    if (!flag && !strncmp(e->key, no, sizeof no - 1)) {
        snprintf(word, sizeof word, "--%s", e->key + sizeof no - 1);
        flag = row_flag_of_word(word);
        is_reversed = true;
        if (flag && flag->kind != ROW_FLAG_SWITCH) flag = NULL; /* others have no opposite */
    }
    if (!flag || flag->kind == ROW_FLAG_OPEN) return NULL; /* of the environment only */
    *says_no = flag->kind == ROW_FLAG_SWITCH
                   ? is_reversed ? host_config_says_yes(e->value) : row_flag_is_off(e->value)
                   : flag->kind == ROW_FLAG_NUMBER && row_flag_is_off(e->value);
    return flag;
}

const char *host_config_value(const host_config *c, const char *brief, const char *flag, const char *variable)
{
    const char *found = NULL;
    for (size_t i = 0; i < c->n; i++) {
        const host_config_entry *e = &c->entries[i];
        if (host_config_is_flag(e, brief) || host_config_is_flag(e, flag) ||
            host_config_is_variable(e, variable))
            found = e->value;
    }
    return found;
}
