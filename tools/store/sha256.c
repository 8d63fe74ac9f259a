/* SPDX-License-Identifier: MIT */
/* sha256: of a file, and of bytes. */
#define _POSIX_C_SOURCE 200809L
#include "store/sha256.h"

#include "common/progress.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <sys/stat.h>

bool sha256_file(const char *path, uint8_t digest[32])
{
    static unsigned char bytes[1 << 20];
    struct stat st = {0};
    progress p;
    FILE *f = fopen(path, "rb");
    if (!f) return false;
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    bool good = md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1;
    size_t n, done = 0;
    (void)fstat(fileno(f), &st);
    progress_start(&p, "digest of the model", "MB", (double)st.st_size / 1e6);
    while (good && (n = fread(bytes, 1, sizeof bytes, f)) > 0) {
        good = EVP_DigestUpdate(md, bytes, n) == 1;
        progress_show(&p, (double)(done += n) / 1e6);
    }
    progress_end(&p);
    good = good && !ferror(f) && EVP_DigestFinal_ex(md, digest, NULL) == 1;
    EVP_MD_CTX_free(md);
    fclose(f);
    return good;
}

bool sha256_bytes(const void *bytes, size_t n, uint8_t digest[32])
{
    return EVP_Digest(bytes, n, digest, NULL, EVP_sha256(), NULL) == 1;
}
