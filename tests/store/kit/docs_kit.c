/* SPDX-License-Identifier: MIT */
/* What docs/store.md tells operators to type. */
#define _GNU_SOURCE
#include "store/kit/docs_kit.h"

#include "store/kit/store_kit.h"

#include <stdio.h>
#include <string.h>

static char *read_page(void)
{
    char path[1200];
    const char *golden = getenv("QUIRE_GOLDEN"); /* tests/golden: the pages are beside tests */
    KIT_REQUIRE(golden);
    (void)snprintf(path, sizeof path, "%s/../../docs/store.md", golden);
    FILE *f = fopen(path, "r");
    char *text = NULL;
    size_t n = 0;
    KIT_REQUIRE(f && getdelim(&text, &n, 0, f) > 0); /* it has no zero bytes */
    (void)fclose(f);
    return text;
}

char *kit_documented(const char *name)
{
    char head[100];
    char *page = read_page();
    (void)snprintf(head, sizeof head, "\n```\n# %s\n", name);
    const char *begin = strstr(page, head), *end = begin ? strstr(begin + 4, "\n```\n") : NULL;
    if (!end) fprintf(stderr, "docs/store.md has no block that begins with \"# %s\"\n", name);
    KIT_REQUIRE(end);
    begin += strlen(head);
    char *block = strndup(begin, (size_t)(end + 1 - begin));
    free(page);
    return block;
}

char *kit_documented_rights(void)
{
    char *block = kit_documented("server.conf"), *line = strstr(block, "\nuser pages "),
         *begin = line ? strchr(line, '~') : NULL;
    KIT_REQUIRE(begin);
    char *rights = strndup(begin, strcspn(begin, "\n"));
    free(block);
    return rights;
}
