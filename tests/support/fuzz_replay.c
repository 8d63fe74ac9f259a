/* SPDX-License-Identifier: MIT */
/* Runs a fuzz target once over the files and folders given, for builds without libFuzzer. */
#define _POSIX_C_SOURCE 200809L

#include "support/fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static size_t n_replayed;

/* The buffer has exactly the input's size, so that AddressSanitizer sees the first byte beyond it.
 * Never NULL, because targets may pass it to memcpy(). */
static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    long size = 0;
    int rc = -1;

    if (!file || fseek(file, 0, SEEK_END) != 0 || (size = ftell(file)) < 0) goto done;
    rewind(file);
    data = calloc(size ? (size_t)size : 1, 1);
    if (!data || fread(data, 1, (size_t)size, file) != (size_t)size) goto done;

    /* Before the call and flushed: after a crash the last line names the input. */
    printf("%s (%ld bytes)\n", path, size);
    fflush(stdout);
    LLVMFuzzerTestOneInput(data, (size_t)size);
    n_replayed++;
    rc = 0;

done:
    if (rc != 0) fprintf(stderr, "%s: %s\n", path, errno ? strerror(errno) : "cannot be read");
    free(data);
    if (file) fclose(file);
    return rc;
}

static int replay_folder(const char *path)
{
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, alphasort);
    int rc = 0;

    if (n < 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return -1;
    }
    for (int i = 0; i < n; i++) {
        char name[4096];
        int length = snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        struct stat st;

        if (length < 0 || (size_t)length >= sizeof name || stat(name, &st) != 0)
            rc = -1;
        else if (S_ISREG(st.st_mode) && entries[i]->d_name[0] != '.' && replay_file(name) != 0)
            rc = -1;
        free(entries[i]);
    }
    free(entries);
    return rc;
}

int main(int argc, char **argv)
{
    int rc = 0;
    uint8_t *empty = calloc(1, 1);

    if (!empty) return EXIT_FAILURE;
    LLVMFuzzerTestOneInput(empty, 0);
    free(empty);

    for (int i = 1; i < argc; i++) {
        struct stat st;

        if (stat(argv[i], &st) != 0) {
            fprintf(stderr, "%s: %s\n", argv[i], strerror(errno));
            rc = -1;
        } else if ((S_ISDIR(st.st_mode) ? replay_folder(argv[i]) : replay_file(argv[i])) != 0) {
            rc = -1;
        }
    }
    printf("replayed %zu inputs and the empty one\n", n_replayed);
    return rc == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
