/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "serve/convert.h"

#include "common/growing.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

typedef yyjson_mut_val made;

/* The request in the form of chats, as it grows. */
typedef struct chat {
    yyjson_mut_doc *doc;
    made *root, *messages;
    bool is_known; /* all of it so far */
} chat;

static yyjson_val *get(yyjson_val *object, const char *name)
{
    return yyjson_is_obj(object) ? body_member(object, name) : NULL;
}

static bool is_absent(yyjson_val *v)
{
    return !v || yyjson_is_null(v);
}

static bool is_word(yyjson_val *v, const char *word)
{
    return yyjson_is_str(v) && yyjson_equals_str(v, word);
}

static void put(chat *c, made *object, const char *name, made *value)
{
    if (!yyjson_mut_obj_put(object, yyjson_mut_str(c->doc, name), value)) c->is_known = false;
}

static void put_word(chat *c, made *object, const char *name, const char *word)
{
    put(c, object, name, yyjson_mut_str(c->doc, word));
}

static void put_copy(chat *c, made *object, const char *name, yyjson_val *value)
{
    put(c, object, name, yyjson_val_mut_copy(c->doc, value));
}

/* A text of the request; an absent one is empty. */
static void put_text(chat *c, made *object, const char *name, yyjson_val *text)
{
    if (is_absent(text))
        put_word(c, object, name, "");
    else if (yyjson_is_str(text))
        put_copy(c, object, name, text);
    else
        c->is_known = false;
}

static void append(chat *c, made *list, made *value)
{
    if (!yyjson_mut_arr_append(list, value)) c->is_known = false;
}

static made *object(chat *c)
{
    made *o = yyjson_mut_obj(c->doc);
    if (!o) c->is_known = false;
    return o;
}

static made *message(chat *c, const char *role)
{
    made *m = object(c);
    put_word(c, m, "role", role);
    append(c, c->messages, m);
    return m;
}

static made *text_part(chat *c, yyjson_val *text)
{
    made *part = object(c);
    put_word(c, part, "type", "text");
    put_text(c, part, "text", text);
    return part;
}

/* Texts that the server joins. */
static void put_joined(chat *c, made *into, const char *name, const growing *joined)
{
    put(c, into, name, yyjson_mut_strncpy(c->doc, joined->n ? joined->bytes : "", joined->n));
}

static void join(chat *c, growing *joined, yyjson_val *text)
{
    if (is_absent(text)) return;
    if (!yyjson_is_str(text) || !growing_add(joined, yyjson_get_str(text), yyjson_get_len(text)))
        c->is_known = false;
}

/* ------------------------------------------------------------------ arguments */

/* Digits without zeros at the end that mean nothing, so that the server's own number looks the same. */
static bool is_plain(const char *number, size_t n)
{
    size_t i = n && *number == '-', whole = i, digits;
    while (i < n && number[i] >= '0' && number[i] <= '9') i++;
    digits = i - whole;
    if (!digits || digits > 15) return false;
    if (i == n) return number[whole] != '0' || n == 1; /* not -0 */
    if (number[i] != '.') return false;
    size_t point = i++;
    while (i < n && number[i] >= '0' && number[i] <= '9') i++;
    if (i < n || i - point - 1 + digits > 15) return false;
    if (number[whole] == '0' && !strncmp(number + point, ".000", 4)) return false; /* has an exponent there */
    return number[n - 1] != '0' || n - point == 2;
}

/* The text that the server makes of a tool's arguments: escapes with small digits, numbers as it writes them. */
static bool make_plain(char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        if (text[i] == '"') {
            for (i++; text[i] != '"'; i++) {
                if (text[i] != '\\') continue;
                if (text[++i] != 'u') continue;
                for (size_t k = 1; k <= 4; k++)
                    if (text[i + k] >= 'A' && text[i + k] <= 'F')
                        text[i + k] = (char)(text[i + k] + 'a' - 'A');
            }
            i++;
        } else if (text[i] == '-' || (text[i] >= '0' && text[i] <= '9')) {
            size_t length = strspn(text + i, "0123456789+-.eE");
            if (!is_plain(text + i, length)) return false;
            i += length;
        } else {
            i++;
        }
    }
    return true;
}

static made *tool_call(chat *c, yyjson_val *id, yyjson_val *name, made *arguments)
{
    made *call = object(c), *function = object(c);
    put_text(c, call, "id", id);
    put_word(c, call, "type", "function");
    put_text(c, function, "name", name);
    put(c, function, "arguments", arguments);
    put(c, call, "function", function);
    return call;
}

static made *arguments_of(chat *c, yyjson_val *input)
{
    size_t n = 0;
    char *text = is_absent(input) ? strdup("{}") : yyjson_val_write(input, 0, &n);
    made *arguments = NULL;
    if (text && make_plain(text, strlen(text))) arguments = yyjson_mut_strcpy(c->doc, text);
    if (!arguments) c->is_known = false;
    free(text);
    return arguments;
}

/* ----------------------------------------------------------------- /v1/messages */

/* The end of a line "x-NAME-billing-header:" at the beginning of a text, or NULL. */
static char *after_header(char *text, size_t n)
{
    static const char name[] = "-billing-header";
    char *colon = n > 2 && !memcmp(text, "x-", 2) ? (char *)memchr(text, ':', n) : NULL;
    size_t length = colon ? (size_t)(colon - text) : 0;
    if (length < sizeof name + 2 || memcmp(colon - (sizeof name - 1), name, sizeof name - 1)) return NULL;
    return colon + 1;
}

/* In such a line a client sends a stamp "cch=" that changes with each request: the server writes five f in its place. */
static void join_system(chat *c, growing *joined, yyjson_val *text)
{
    size_t begin = joined->n;
    join(c, joined, text);
    char *at = joined->n > begin ? after_header(joined->bytes + begin, joined->n - begin) : NULL;
    for (char *end = joined->bytes + joined->n; at && end - at > 9; at++) {
        if (memcmp(at, "cch=", 4)) continue;
        if (at[9] == ';') memset(at + 4, 'f', 5);
        return;
    }
}

static void convert_system(chat *c, yyjson_val *system)
{
    growing joined = {0};
    yyjson_val *block;
    yyjson_arr_iter all = yyjson_arr_iter_with(system);
    if (is_absent(system)) return;
    if (yyjson_is_str(system)) {
        join_system(c, &joined, system);
    } else if (yyjson_is_arr(system)) {
        while ((block = yyjson_arr_iter_next(&all))) {
            if (!is_word(get(block, "type"), "text")) c->is_known = false;
            join_system(c, &joined, get(block, "text"));
        }
    } else {
        c->is_known = false;
    }
    put_joined(c, message(c, "system"), "content", &joined);
    growing_free(&joined);
}

static made *tool_result(chat *c, yyjson_val *block)
{
    made *m = object(c);
    growing joined = {0};
    yyjson_val *content = get(block, "content"), *part;
    yyjson_arr_iter all = yyjson_arr_iter_with(content);
    put_word(c, m, "role", "tool");
    put_text(c, m, "tool_call_id", get(block, "tool_use_id"));
    if (yyjson_is_arr(content)) {
        while ((part = yyjson_arr_iter_next(&all))) {
            if (!is_word(get(part, "type"), "text")) c->is_known = false;
            join(c, &joined, get(part, "text"));
        }
    } else {
        join(c, &joined, content);
    }
    put_joined(c, m, "content", &joined);
    growing_free(&joined);
    return m;
}

/* The blocks of one message: results of tools become messages of their own, after it. */
static void convert_blocks(chat *c, yyjson_val *role, yyjson_val *content)
{
    made *parts = yyjson_mut_arr(c->doc), *calls = yyjson_mut_arr(c->doc), *results = yyjson_mut_arr(c->doc),
         *one;
    growing thought = {0};
    yyjson_val *block;
    yyjson_arr_iter all = yyjson_arr_iter_with(content);
    while ((block = yyjson_arr_iter_next(&all))) {
        yyjson_val *type = get(block, "type");
        if (is_word(type, "text"))
            append(c, parts, yyjson_val_mut_copy(c->doc, block));
        else if (is_word(type, "thinking"))
            join(c, &thought, get(block, "thinking"));
        else if (is_word(type, "tool_use"))
            append(c, calls,
                   tool_call(c, get(block, "id"), get(block, "name"), arguments_of(c, get(block, "input"))));
        else if (is_word(type, "tool_result"))
            append(c, results, tool_result(c, block));
        else if (!is_word(type, "redacted_thinking")) /* which the server leaves out */
            c->is_known = false;
    }
    bool has_parts = yyjson_mut_arr_size(parts), has_calls = yyjson_mut_arr_size(calls);
    if (has_parts || has_calls || thought.n) {
        made *m = object(c);
        put_copy(c, m, "role", role);
        put(c, m, "content", has_parts ? parts : yyjson_mut_str(c->doc, ""));
        if (has_calls) put(c, m, "tool_calls", calls);
        if (thought.n) put_joined(c, m, "reasoning_content", &thought);
        append(c, c->messages, m);
    }
    while ((one = yyjson_mut_arr_remove_first(results))) append(c, c->messages, one);
    growing_free(&thought);
}

static void convert_message(chat *c, yyjson_val *given)
{
    yyjson_val *role = get(given, "role"), *content = get(given, "content");
    if (!yyjson_is_str(role))
        c->is_known = false;
    else if (!content && is_word(role, "assistant"))
        return;
    else if (!yyjson_is_arr(content))
        append(c, c->messages, yyjson_val_mut_copy(c->doc, given));
    else
        convert_blocks(c, role, content);
}

static void convert_tools(chat *c, yyjson_val *tools)
{
    made *list = yyjson_mut_arr(c->doc);
    yyjson_val *tool;
    yyjson_arr_iter all = yyjson_arr_iter_with(tools);
    if (!yyjson_is_arr(tools)) return;
    while ((tool = yyjson_arr_iter_next(&all))) {
        made *one = object(c), *function = object(c);
        yyjson_val *schema = get(tool, "input_schema");
        if (!yyjson_is_obj(tool)) c->is_known = false;
        put_text(c, function, "name", get(tool, "name"));
        put_text(c, function, "description", get(tool, "description"));
        put(c, function, "parameters", schema ? yyjson_val_mut_copy(c->doc, schema) : object(c));
        put_word(c, one, "type", "function");
        put(c, one, "function", function);
        append(c, list, one);
    }
    put(c, c->root, "tools", list);
}

static void convert_choice(chat *c, yyjson_val *choice)
{
    yyjson_val *type = get(choice, "type");
    if (is_word(type, "auto")) put_word(c, c->root, "tool_choice", "auto");
    if (is_word(type, "any") || is_word(type, "tool")) put_word(c, c->root, "tool_choice", "required");
}

static void make_from_messages(chat *c, yyjson_val *from)
{
    yyjson_val *messages = get(from, "messages"), *settings = get(from, "chat_template_kwargs"), *one;
    yyjson_arr_iter all = yyjson_arr_iter_with(messages);
    if (!yyjson_is_arr(messages)) c->is_known = false;
    convert_system(c, get(from, "system"));
    while (c->is_known && (one = yyjson_arr_iter_next(&all))) convert_message(c, one);
    convert_tools(c, get(from, "tools"));
    convert_choice(c, get(from, "tool_choice"));
    if (settings) put_copy(c, c->root, "chat_template_kwargs", settings);
}

/* ---------------------------------------------------------------- /v1/responses */

/* The message of the assistant that an item goes on with, or a new one. */
static made *assistant(chat *c)
{
    made *last = yyjson_mut_arr_get_last(c->messages);
    made *role = last ? yyjson_mut_obj_get(last, "role") : NULL;
    return role && yyjson_mut_equals_str(role, "assistant") ? last : message(c, "assistant");
}

static made *list_of(chat *c, made *m, const char *name)
{
    made *list = yyjson_mut_obj_get(m, name);
    if (list) return list;
    list = yyjson_mut_arr(c->doc);
    put(c, m, name, list);
    return list;
}

static void add_texts(chat *c, made *list, yyjson_val *content, const char *type, const char *other)
{
    yyjson_val *part;
    yyjson_arr_iter all = yyjson_arr_iter_with(content);
    if (yyjson_is_str(content)) append(c, list, text_part(c, content));
    while ((part = yyjson_arr_iter_next(&all))) {
        yyjson_val *of = get(part, "type"), *text = get(part, "text");
        if (!yyjson_is_str(text) || !(is_word(of, type) || (other && is_word(of, other))))
            c->is_known = false;
        append(c, list, text_part(c, text));
    }
}

/* A message of a user or of a system keeps its other members. */
static void convert_input(chat *c, yyjson_val *item)
{
    made *m = yyjson_val_mut_copy(c->doc, item), *list = yyjson_mut_arr(c->doc);
    yyjson_val *content = get(item, "content");
    if (!m || !(yyjson_is_arr(content) || yyjson_is_str(content))) {
        c->is_known = false;
        return;
    }
    yyjson_mut_obj_remove_key(m, "type");
    yyjson_mut_obj_remove_key(m, "status");
    yyjson_mut_obj_remove_key(m, "content");
    add_texts(c, list, content, "input_text", NULL);
    put(c, m, "content", list);
    append(c, c->messages, m);
}

static void convert_item(chat *c, yyjson_val *item)
{
    yyjson_val *type = get(item, "type"), *role = get(item, "role"), *id = get(item, "call_id");
    if (is_word(role, "user") || is_word(role, "system") || is_word(role, "developer")) {
        convert_input(c, item);
    } else if (is_word(role, "assistant") && is_word(type, "message")) {
        made *m = assistant(c);
        add_texts(c, list_of(c, m, "content"), get(item, "content"), "output_text", "input_text");
    } else if (is_word(type, "function_call") && yyjson_is_str(id) && yyjson_is_str(get(item, "name")) &&
               yyjson_is_str(get(item, "arguments"))) {
        made *m = assistant(c);
        append(c, list_of(c, m, "tool_calls"),
               tool_call(c, id, get(item, "name"), yyjson_val_mut_copy(c->doc, get(item, "arguments"))));
    } else if (is_word(type, "function_call_output") && yyjson_is_str(id)) {
        made *m = message(c, "tool");
        yyjson_val *output = get(item, "output");
        put_copy(c, m, "tool_call_id", id);
        if (yyjson_is_str(output))
            put_copy(c, m, "content", output);
        else
            add_texts(c, list_of(c, m, "content"), yyjson_is_arr(output) ? output : id, "input_text", NULL);
        if (!yyjson_is_str(output) && !yyjson_is_arr(output)) c->is_known = false;
    } else if (is_word(type, "reasoning") && yyjson_is_arr(get(item, "summary"))) {
        yyjson_val *first = yyjson_arr_get_first(get(item, "content"));
        made *m = assistant(c);
        list_of(c, m, "content");
        if (!yyjson_is_str(get(first, "text"))) c->is_known = false;
        put_text(c, m, "reasoning_content", get(first, "text"));
    } else {
        c->is_known = false;
    }
}

static void convert_functions(chat *c, yyjson_val *tools)
{
    made *list = yyjson_mut_arr(c->doc);
    yyjson_val *tool;
    yyjson_arr_iter all = yyjson_arr_iter_with(tools);
    if (!yyjson_is_arr(tools)) c->is_known = false;
    while ((tool = yyjson_arr_iter_next(&all))) {
        made *one = object(c), *function = yyjson_val_mut_copy(c->doc, tool);
        if (!is_word(get(tool, "type"), "function")) continue; /* the server leaves them out */
        yyjson_mut_obj_remove_key(function, "type");
        if (!get(tool, "strict")) put(c, function, "strict", yyjson_mut_true(c->doc));
        put_word(c, one, "type", "function");
        put(c, one, "function", function);
        append(c, list, one);
    }
    if (yyjson_mut_arr_size(list)) put(c, c->root, "tools", list);
}

/* What is not of this form is the server's own, and stays. */
static void copy_rest(chat *c, yyjson_val *from)
{
    static const char *const own[] = {"input",     "instructions", "tools",
                                      "reasoning", "messages",     "max_output_tokens"};
    yyjson_val *key;
    yyjson_obj_iter all = yyjson_obj_iter_with(from);
    while ((key = yyjson_obj_iter_next(&all))) {
        bool is_own = false;
        for (size_t i = 0; i < sizeof own / sizeof *own; i++) is_own |= yyjson_equals_str(key, own[i]);
        if (is_own) continue;
        made *value = yyjson_val_mut_copy(c->doc, yyjson_obj_iter_get_val(key));
        if (!yyjson_mut_obj_add(c->root, yyjson_val_mut_copy(c->doc, key), value)) c->is_known = false;
    }
}

static void make_from_responses(chat *c, yyjson_val *from)
{
    yyjson_val *input = get(from, "input"), *instructions = get(from, "instructions"), *one;
    yyjson_val *before = get(from, "previous_response_id"), *effort = get(get(from, "reasoning"), "effort");
    yyjson_arr_iter all = yyjson_arr_iter_with(input);
    if (!is_absent(before) && !is_word(before, "")) c->is_known = false;
    copy_rest(c, from);
    if (instructions) put_text(c, message(c, "system"), "content", instructions);
    if (yyjson_is_str(input))
        put_copy(c, message(c, "user"), "content", input);
    else if (!yyjson_is_arr(input))
        c->is_known = false;
    while (c->is_known && (one = yyjson_arr_iter_next(&all))) convert_item(c, one);
    if (get(from, "tools")) convert_functions(c, get(from, "tools"));
    if (effort) put_copy(c, c->root, "reasoning_effort", effort);
}

/* -------------------------------------------------------------------------- both */

static char *convert(const body *b, void (*make)(chat *c, yyjson_val *from), size_t *n)
{
    chat c = {.doc = yyjson_mut_doc_new(NULL)};
    char *text = NULL;
    if (!c.doc) return NULL;
    c.root = yyjson_mut_obj(c.doc);
    c.messages = yyjson_mut_arr(c.doc);
    c.is_known = c.root && c.messages;
    if (c.is_known) {
        make(&c, body_root(b));
        put(&c, c.root, "messages", c.messages);
        yyjson_mut_doc_set_root(c.doc, c.root);
    }
    if (c.is_known) text = yyjson_mut_write(c.doc, 0, n);
    yyjson_mut_doc_free(c.doc);
    return text;
}

char *convert_messages(const body *b, size_t *n)
{
    return convert(b, make_from_messages, n);
}

char *convert_responses(const body *b, size_t *n)
{
    return convert(b, make_from_responses, n);
}
