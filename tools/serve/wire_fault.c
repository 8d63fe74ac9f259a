/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/wire_fault.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

void fault_text(char *text, size_t size, unsigned status, const char *kind, const char *sentence)
{
    snprintf(text, size, "{\"error\":{\"code\":%u,\"message\":\"%s\",\"type\":\"%s\"}}", status, sentence,
             kind);
}

void wire_fault(int fd, unsigned status, const char *kind, const char *sentence)
{
    char body[512], all[1024];
    const char *reason = status == 408   ? "Request Timeout"
                         : status == 413 ? "Content Too Large"
                                         : "Service Unavailable";
    fault_text(body, sizeof body, status, kind, sentence);
    snprintf(all, sizeof all,
             "HTTP/1.1 %u %s\r\nConnection: close\r\nContent-Type: application/json; charset=utf-8\r\n"
             "Content-Length: %zu\r\n\r\n%s",
             status, reason, strlen(body), body);
    (void)!send(fd, all, strlen(all), MSG_DONTWAIT | MSG_NOSIGNAL);
}
