/* SPDX-License-Identifier: MIT */
/* bench: decode time against context as an SVG picture, both axes logarithmic. */
#include "bench/bench.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 860, HEIGHT = 520, LEFT = 70, RIGHT = 650, TOP = 60, BOTTOM = 460 };
#define MAX_LINES 24

/* The palette of Okabe and Ito, which people with colour-blindness can tell apart. */
static const char *const colours[] = {"#000000", "#0072b2", "#d55e00", "#009e73",
                                      "#cc79a7", "#e69f00", "#56b4e9"};
#define N_COLOURS (sizeof colours / sizeof colours[0])

/* An axis: the logarithm of min is at pixel `from`, that of max at `to`. */
typedef struct axis {
    double min, max;
    int from, to;
} axis;

static double pixel(const axis *a, double x)
{
    return a->from + (log(x) - log(a->min)) / (log(a->max) - log(a->min)) * (a->to - a->from);
}

/* 1, 2 or 5 times a power of ten; the number of such a step. */
static double step_value(int i)
{
    static const double mantissa[] = {1, 2, 5};
    int decade = (int)floor(i / 3.0);
    return mantissa[i - decade * 3] * pow(10, decade);
}

static int step_below(double x)
{
    int i = 3 * (int)floor(log10(x)) + 3;
    while (step_value(i) > x * 1.000001) i--;
    return i;
}

static int step_above(double x)
{
    int i = step_below(x);
    return step_value(i) >= x * 0.999999 ? i : i + 1;
}

static bool is_plotted(const bench_rows *rows, const bench_row *r)
{
    const bench_row *first = NULL;
    for (size_t i = 0; !first && i < rows->n; i++)
        if (strcmp(rows->row[i].op, "decode") == 0) first = &rows->row[i];
    return first && bench_same_work(first, r) && r->context && r->ms > 0;
}

static bool same_line(const bench_row *a, const bench_row *b)
{
    return strcmp(a->impl, b->impl) == 0 && strcmp(a->k, b->k) == 0 && strcmp(a->v, b->v) == 0 &&
           strcmp(a->isa, b->isa) == 0;
}

/* Rows of different lines, those of the longest times first, so that the legend is in the order of the picture. */
static size_t find_lines(const bench_rows *rows, const bench_row **line)
{
    const bench_row *longest[MAX_LINES];
    size_t n = 0;
    for (size_t i = 0; i < rows->n; i++) {
        const bench_row *r = &rows->row[i];
        size_t at = 0;
        if (!is_plotted(rows, r)) continue;
        while (at < n && !same_line(line[at], r)) at++;
        if (at == MAX_LINES) continue;
        if (at == n) line[n] = longest[n] = r, n++;
        if (r->context > longest[at]->context) longest[at] = r;
    }
    for (size_t i = 1; i < n; i++) {
        for (size_t j = i; j > 0 && longest[j]->ms > longest[j - 1]->ms; j--) {
            const bench_row *a = longest[j], *b = line[j];
            longest[j] = longest[j - 1], line[j] = line[j - 1];
            longest[j - 1] = a, line[j - 1] = b;
        }
    }
    return n;
}

static void find_axes(const bench_rows *rows, axis *x, axis *y)
{
    *x = (axis){INFINITY, 0, LEFT, RIGHT};
    *y = (axis){INFINITY, 0, BOTTOM, TOP};
    for (size_t i = 0; i < rows->n; i++) {
        const bench_row *r = &rows->row[i];
        if (!is_plotted(rows, r)) continue;
        x->min = fmin(x->min, r->context), x->max = fmax(x->max, r->context);
        y->min = fmin(y->min, r->ms), y->max = fmax(y->max, r->ms);
    }
    x->min /= 1.15, x->max *= 1.15;
    y->min = step_value(step_below(y->min)), y->max = step_value(step_above(y->max));
    if (y->min == y->max) y->max *= 2;
}

/* ----------------------------------------------------------------- drawing */

static void draw_frame(FILE *file, const bench_rows *rows, const axis *x, const axis *y)
{
    char text[32];
    for (int i = step_below(y->min); step_value(i) <= y->max * 1.000001; i++) {
        double at = pixel(y, step_value(i));
        fprintf(file, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", LEFT, at,
                RIGHT, at);
        fprintf(file, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", LEFT - 8, at + 4,
                step_value(i));
    }
    for (size_t i = 0; i < rows->n; i++) { /* one mark per context */
        bool seen = !is_plotted(rows, &rows->row[i]);
        for (size_t j = 0; j < i; j++)
            if (is_plotted(rows, &rows->row[j]) && rows->row[j].context == rows->row[i].context) seen = true;
        if (seen) continue;
        double at = pixel(x, rows->row[i].context);
        fprintf(file, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#eee\"/>\n", at, TOP, at,
                BOTTOM);
        fprintf(file, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", at, BOTTOM + 20,
                bench_tokens_text(rows->row[i].context, text, sizeof text));
    }
    fprintf(file, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#888\"/>\n",
            LEFT, TOP, RIGHT - LEFT, BOTTOM - TOP);
    fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">tokens in the cache</text>\n",
            (LEFT + RIGHT) / 2, BOTTOM + 44);
    fprintf(file,
            "<text transform=\"translate(22 %d) rotate(-90)\" text-anchor=\"middle\">ms per layer</text>\n",
            (TOP + BOTTOM) / 2);
}

static void draw_title(FILE *file, const bench_row *r)
{
    fprintf(
        file,
        "<text x=\"%d\" y=\"26\" font-size=\"16\" font-weight=\"bold\">Decode: attention of one token</text>\n",
        LEFT);
    fprintf(file, "<text x=\"%d\" y=\"46\">%u KV heads, %u query heads of %u", LEFT, r->kv_heads, r->q_heads,
            r->d);
    if (r->dv != r->d) fprintf(file, "/%u", r->dv);
    if (r->sequences > 1) fprintf(file, ", %u sequences", r->sequences);
    fprintf(file, ", %u threads%s; minimum of %u runs</text>\n", r->threads,
            r->cold ? ", nothing in cache" : "", r->runs);
}

/* The points of a line from left to right, whatever the order of the rows. */
static void draw_line(FILE *file, const bench_rows *rows, const bench_row *line, size_t index, const axis *x,
                      const axis *y)
{
    const char *colour = colours[index % N_COLOURS];
    bool dashed = strcmp(line->impl, "quire") != 0;
    char codec[64];
    fprintf(file, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s points=\"", colour,
            dashed ? " stroke-dasharray=\"6 4\"" : "");
    for (double last = 0;;) {
        const bench_row *next = NULL;
        for (size_t i = 0; i < rows->n; i++) {
            const bench_row *r = &rows->row[i];
            if (is_plotted(rows, r) && same_line(r, line) && r->context > last &&
                (!next || r->context < next->context))
                next = r;
        }
        if (!next) break;
        last = next->context;
        fprintf(file, "%.1f,%.1f ", pixel(x, next->context), pixel(y, next->ms));
    }
    fprintf(file, "\"/>\n");
    for (size_t i = 0; i < rows->n; i++)
        if (is_plotted(rows, &rows->row[i]) && same_line(&rows->row[i], line))
            fprintf(file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n",
                    pixel(x, rows->row[i].context), pixel(y, rows->row[i].ms), colour);
    int at = TOP + 10 + (int)index * 20;
    fprintf(file,
            "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"2\"%s/>"
            "<text x=\"%d\" y=\"%d\">%s%s, %s</text>\n",
            RIGHT + 15, at, RIGHT + 43, at, colour, dashed ? " stroke-dasharray=\"6 4\"" : "", RIGHT + 50,
            at + 4, dashed ? "ggml " : "", bench_codec_text(line, codec, sizeof codec), line->isa);
}

int bench_rows_plot(const bench_rows *rows, const char *path)
{
    const bench_row *line[MAX_LINES];
    axis x, y;
    size_t n = find_lines(rows, line);
    if (!n) return tool_failed("bench", "there are no decode rows to plot");
    FILE *file = fopen(path, "w");
    if (!file) return tool_failed("bench", "%s cannot be written", path);
    find_axes(rows, &x, &y);
    fprintf(
        file,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
        "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
        WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT);
    draw_title(file, line[0]);
    draw_frame(file, rows, &x, &y);
    for (size_t i = 0; i < n; i++) draw_line(file, rows, line[i], i, &x, &y);
    fprintf(file, "</svg>\n");
    bool wrong = ferror(file);
    if (fclose(file) || wrong) return tool_failed("bench", "%s cannot be written", path);
    return TOOL_OK;
}
