/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "files/secret_file.h"

#include "files/private_file.h"

#include <errno.h>
#include <string.h>

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

bool secret_read_hex(const char *digits, size_t n, uint8_t *bytes)
{
    for (size_t i = 0; i < n; i++)
        if (hex_digit(digits[i]) < 0) return false;
    for (size_t i = 0; i < n / 2; i++)
        bytes[i] = (uint8_t)(hex_digit(digits[2 * i]) << 4 | hex_digit(digits[2 * i + 1]));
    return true;
}

const char *secret_read(const char *path, uint8_t secret[32])
{
    static const char wrong[] = "a secret must be 32 bytes or 64 hex digits";
    char bytes[80];
    FILE *f = fopen(path, "rb");
    if (!f) return strerror(errno);
    size_t n = fread(bytes, 1, sizeof bytes, f);
    bool is_shared = private_is_shared(fileno(f));
    fclose(f);
    if (is_shared) return "others can read or change the secret; make it yours alone (chmod 600)";
    if (n == 32) {
        memcpy(secret, bytes, 32);
        return NULL;
    }
    return n >= 64 && n <= 66 && secret_read_hex(bytes, 64, secret) ? NULL : wrong;
}
