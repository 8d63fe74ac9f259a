/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "common/child.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void become(const child *c, int out)
{
    dup2(out, 1);
    dup2(out, 2);
    close(out);
    for (const child_variable *v = c->variables; v && v->name; v++)
        if (v->value)
            setenv(v->name, v->value, 1);
        else
            unsetenv(v->name);
    if (c->seconds) alarm(c->seconds); /* goes on after execv */
    /* argv of execv is not const for reasons of history */
    execv(c->argv[0], (char *const *)(void *)(size_t)c->argv);
    _exit(127);
}

int child_run(const child *c)
{
    int pipe_fd[2], status;
    char text[4096];
    ssize_t n;
    if (pipe(pipe_fd)) return -1;
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        close(pipe_fd[0]);
        close(pipe_fd[1]);
        return -1;
    }
    if (!pid) {
        close(pipe_fd[0]);
        become(c, pipe_fd[1]);
    }
    close(pipe_fd[1]);
    while ((n = read(pipe_fd[0], text, sizeof text)) > 0 || (n < 0 && errno == EINTR))
        if (n > 0 && c->output) c->output(c->ctx, text, (size_t)n);
    close(pipe_fd[0]);
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
