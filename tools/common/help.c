/* SPDX-License-Identifier: MIT */
/* help: what a command's tables say, as text, as a page for man, as completion. */
#include "common/tool.h"

#include <string.h>

tool_form tool_help_form = TOOL_TEXT;
const char *tool_help_brief = "";

/* -------------------------------------------------------------------- text */

#define TEXT_COLUMN 26

static void print_option(const char *name, const char *value, const char *text)
{
    int n = printf("  %s%s%s", name, value ? " " : "", value ? value : "");
    if (n >= TEXT_COLUMN) {
        putchar('\n');
        n = 0;
    }
    for (; *text; text++) {
        for (; n < TEXT_COLUMN; n++) putchar(' ');
        for (; *text && *text != '\n'; text++) putchar(*text);
        putchar('\n');
        n = 0;
        if (!*text) break;
    }
}

static void print_text(const tool_command *c)
{
    printf("usage: quire %s %s\n\n%s\n\noptions:\n", c->name, c->usage, c->about);
    for (size_t i = 0; i < c->n_options; i++)
        print_option(c->options[i].name, c->options[i].value, c->options[i].text);
    print_option("--help", NULL, "print this text");
    printf("\nexamples:\n%s\nExit codes: %s.\n", c->examples,
           c->exit_codes ? c->exit_codes : TOOL_EXIT_CODES);
}

/* --------------------------------------------------------------------- man */

/* A line may begin with a dot or a quote only if it is a request, and a backslash begins one anywhere; a plain minus is
 * a hyphen to man. */
void tool_man_text(const char *text)
{
    bool begins = true;
    for (; *text; text++) {
        if (begins && (*text == '.' || *text == '\'')) printf("\\&");
        if (*text == '\\')
            printf("\\e");
        else if (*text == '-')
            printf("\\-");
        else
            putchar(*text);
        begins = *text == '\n';
    }
}

void tool_man_head(const char *name, const char *brief)
{
    printf(".TH \"%s\" 1 \"\" \"Quire %s\"\n.SH NAME\n", name, quire_version());
    tool_man_text(name);
    printf(" \\- ");
    tool_man_text(brief);
    printf("\n");
}

void tool_man_tail(void)
{
    printf(".SH SEE ALSO\nquire(1), and quire COMMAND \\-\\-help\n");
}

static void print_man(const tool_command *c)
{
    char name[64];
    snprintf(name, sizeof name, "quire-%s", c->name);
    tool_man_head(name, tool_help_brief);
    printf(".SH SYNOPSIS\n.B quire %s\n", c->name);
    tool_man_text(c->usage);
    printf("\n.SH DESCRIPTION\n");
    tool_man_text(c->about);
    printf("\n.SH OPTIONS\n");
    for (size_t i = 0; i < c->n_options; i++) {
        printf(".TP\n.B ");
        tool_man_text(c->options[i].name);
        if (c->options[i].value) printf(" "), tool_man_text(c->options[i].value);
        printf("\n");
        tool_man_text(c->options[i].text);
        printf("\n");
    }
    printf(".TP\n.B \\-\\-help\nPrint a shorter form of this page.\n.SH EXIT STATUS\n");
    tool_man_text(c->exit_codes ? c->exit_codes : TOOL_EXIT_CODES);
    printf(".\n.SH EXAMPLES\n.nf\n");
    tool_man_text(c->examples);
    printf(".fi\n");
    tool_man_tail();
}

/* -------------------------------------------------------------- completion */

static void print_completion(const tool_command *c)
{
    printf("        %s) words='", c->name);
    for (size_t i = 0; i < c->n_options; i++) printf("%s ", c->options[i].name);
    printf("--help' values='");
    for (size_t i = 0; i < c->n_options; i++)
        if (c->options[i].value) printf("%s ", c->options[i].name);
    printf("' rest=%d ;;\n", c->set_rest != NULL);
}

int tool_help(const tool_command *c)
{
    if (tool_help_form == TOOL_MAN)
        print_man(c);
    else if (tool_help_form == TOOL_COMPLETION)
        print_completion(c);
    else
        print_text(c);
    return TOOL_OK;
}
