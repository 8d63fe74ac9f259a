/* SPDX-License-Identifier: MIT */
/* wire_fault: an error written to a socket directly, where libmicrohttpd lets nobody answer: before a request is whole. */
#ifndef QUIRE_TOOLS_SERVE_WIRE_FAULT_H
#define QUIRE_TOOLS_SERVE_WIRE_FAULT_H

#include <stddef.h>

/* The body of an error in the form of llama-server's. kind and sentence: without characters that JSON escapes. */
void fault_text(char *text, size_t size, unsigned status, const char *kind, const char *sentence);
/* Never waits. The caller closes the connection. */
void wire_fault(int fd, unsigned status, const char *kind, const char *sentence);

#endif
