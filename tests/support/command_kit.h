/* SPDX-License-Identifier: MIT */
/* Runs the command `quire` as a user does, and looks at the JSON that it prints. Include cmocka.h first. */
#ifndef QUIRE_TESTS_COMMAND_KIT_H
#define QUIRE_TESTS_COMMAND_KIT_H

#include <ctype.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char quire_path[PATH_MAX];

typedef struct result {
    int code;
    char text[1 << 16]; /* of stdout, or of stderr if only that was asked for */
} result;

/* Runs `quire <arguments>`; the shell sees the arguments. */
static inline result *run(const char *arguments)
{
    static result r;
    char line[PATH_MAX + 4096];
    snprintf(line, sizeof line, "'%s' %s", quire_path, arguments);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    size_t n = fread(r.text, 1, sizeof r.text - 1, pipe);
    assert_true(n < sizeof r.text - 1);
    r.text[n] = 0;
    int status = pclose(pipe);
    r.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return &r;
}

/* Beside this program. Without it, or if it does not run here (another architecture), there is nothing to test. */
static inline int find_command(void **state)
{
    (void)state;
    ssize_t n = readlink("/proc/self/exe", quire_path, sizeof quire_path - 16);
    if (n < 0) return -1;
    quire_path[n] = 0;
    char *name = strrchr(quire_path, '/');
    if (!name) return -1;
    strcpy(name, "/quire");
    if (run("--version 2>/dev/null")->code != 0) quire_path[0] = 0;
    return 0;
}

static inline void need_command(void)
{
    if (!quire_path[0]) skip();
}

/* -------------------------------------------------------------------- JSON */

static inline const char *space(const char *p)
{
    while (*p == ' ') p++;
    return p;
}

/* The end of a JSON value, or NULL if it is none. */
static inline const char *json_value(const char *p)
{
    static const char *const words[] = {"true", "false", "null"};
    if (*p == '"') {
        for (p++; *p && *p != '"'; p++)
            if (*p == '\\' && !*++p) return NULL;
        return *p ? p + 1 : NULL;
    }
    if (*p == '{' || *p == '[') {
        char end = *p == '{' ? '}' : ']';
        for (p = space(p + 1); *p != end;) {
            if (end == '}') {
                if (*p != '"' || !(p = json_value(p)) || *(p = space(p)) != ':') return NULL;
                p = space(p + 1);
            }
            if (!(p = json_value(p))) return NULL;
            p = space(p);
            if (*p != ',' && *p != end) return NULL;
            if (*p == ',') p = space(p + 1);
        }
        return p + 1;
    }
    for (size_t i = 0; i < 3; i++)
        if (strncmp(p, words[i], strlen(words[i])) == 0) return p + strlen(words[i]);
    char *end;
    if (*p != '-' && !isdigit((unsigned char)*p)) return NULL;
    strtod(p, &end);
    return end;
}

/* The value of a key in a flat object; fails the test if it is not there. */
static inline const char *value_of(const char *line, const char *key)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(line, quoted);
    if (!at) fail_msg("no %s in %s", key, line);
    return at + strlen(quoted);
}

/* Calls back for every line, each of which must be one object. */
static inline uint32_t each_line(char *text, void (*look)(const char *line, uint32_t index))
{
    uint32_t n = 0;
    for (char *line = text, *end; *line; line = end + 1, n++) {
        end = strchr(line, '\n');
        assert_non_null(end);
        *end = 0;
        const char *rest = *line == '{' ? json_value(line) : NULL;
        if (!rest || *rest) fail_msg("not an object: %s", line);
        if (look) look(line, n);
    }
    return n;
}

#endif
