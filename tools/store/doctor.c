/* SPDX-License-Identifier: MIT */
/* store_doctor: quire store doctor. */
#include "store/doctor.h"

#include <stdarg.h>
#include <string.h>

static const char *const names[] = {"ok", "note", "warning", "fault"};

void doctor_say(doctor *d, const char *check, severity how, const char *to_do, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    d->n[how]++;
    if (!d->options->json) {
        printf("%-8s %-18s %s\n", names[how], check, tool_plain(text));
        if (to_do) printf("%-27s %s\n", "", to_do);
        return;
    }
    printf("{\"check\":\"%s\",\"severity\":\"%s\",\"finding\":", check, names[how]);
    tool_json_string(stdout, text);
    printf(",\"to_do\":");
    if (to_do)
        tool_json_string(stdout, to_do);
    else
        printf("null");
    printf("}\n");
}

int store_doctor(int argc, char **argv)
{
    static const tool_command about = {
        .name = "store doctor",
        .usage = "[--dir DIRECTORY] [--remote HOST:PORT] [--json]",
        .about =
            "Looks for what is wrong with a directory, a remote tier or both, and says what to do. Each line has a severity\n"
            "(ok, note, warning, fault), the name of the check, and a sentence. Run it as the user that the engine runs as,\n"
            "with the engine's login. It makes a small file in the directory and a key in the remote tier and removes them,\n"
            "and it opens the directory as an engine does: a damaged index is made anew. It reads the headers of 1,000\n"
            "pages; quire store verify reads everything. Some checks of the remote tier need rights that an engine does\n"
            "not have (INFO, CONFIG GET, TIME); what is refused is a note.",
        .examples = "  quire store doctor --dir /var/cache/quire\n"
                    "  quire store doctor --remote cache:6379 --user pages --password-file password --tls\n"
                    "  quire store doctor --dir /var/cache/quire --json | grep -v '\"ok\"'\n",
        .exit_codes = "0 no fault, 1 at least one fault, 2 wrong command line",
    };
    store_options o;
    int code = store_parse(&o, STORE_DISK | STORE_REMOTE, &about, NULL, 0, argc, argv);
    if (code >= 0) return code;
    doctor d = {.options = &o};
    if (o.directory) doctor_look_at_disk(&d);
    if (o.remote.host) doctor_look_at_remote(&d);
    if (!o.json)
        printf("%u faults, %u warnings, %u notes\n", d.n[SEVERITY_FAULT], d.n[SEVERITY_WARNING],
               d.n[SEVERITY_NOTE]);
    code = tool_finish(o.command);
    return code ? code : d.n[SEVERITY_FAULT] ? TOOL_FAILED : TOOL_OK;
}
