/* SPDX-License-Identifier: MIT */
/* core: names and sentences of the status codes. */
#include "core/core.h"

const char *quire_status_name(quire_status status)
{
    switch (status) {
#define NAME_CASE(name, text) \
    case QUIRE_##name: return #name;
        QUIRE_STATUS_LIST(NAME_CASE)
#undef NAME_CASE
    }
    return "UNKNOWN";
}

const char *quire_status_text(quire_status status)
{
    switch (status) {
#define TEXT_CASE(name, text) \
    case QUIRE_##name: return text;
        QUIRE_STATUS_LIST(TEXT_CASE)
#undef TEXT_CASE
    }
    return "not a status of this library";
}

#define TEXT_OF(x) #x
#define VERSION_TEXT(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)

const char *quire_version(void)
{
    return VERSION_TEXT(QUIRE_VERSION_MAJOR, QUIRE_VERSION_MINOR, QUIRE_VERSION_PATCH);
}
