/* SPDX-License-Identifier: MIT */
/* Policy strings: what is accepted and what it stands for, what is refused and why. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cache/policy.h"

#include <stdio.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct {
    const char *text, *canonical, *with_profile; /* with_profile NULL: the same */
} valid[] = {
    /* presets */
    {"k8v4", "a8g64/a4g64", NULL},
    {"k4v4", "a4g64/a4g64", NULL},
    {"safe", "r8/r8", "c:r8/r8"},
    {"balanced", "r6/r4", "c:r5/r4"},
    {"small", "r5/r3", "c:r4/r3"},
    {"balanced,edge=2:r8", "r6/r4,edge=2:r8/r8", "c:r5/r4,edge=2:r8/r8"},
    {"small,k=r8", "r8/r3", NULL},
    {"small,v=r8", "r5/r8", "c:r4/r8"},
    /* codecs and pairs */
    {"f16", "f16/f16", NULL},
    {"f32/bf16", "f32/bf16", NULL},
    {"h:a4g64", "h:a4g64/h:a4g64", NULL},
    {"h:q8_0/iq4_nl", "h:q8_0/iq4_nl", NULL},
    {"c:r4/r4", "c:r4/r4", NULL},
    {"r4,k=r8", "r8/r4", NULL},
    {"r4,k=c:r8", "c:r8/r4", NULL},
    /* items */
    {"k=r5,v=r3", "r5/r3", NULL},
    {"v=r3,k=r5", "r5/r3", NULL},
    {"k=c:r5,v=r3", "c:r5/r3", NULL},
    {"r4,window=f16", "r4/r4", NULL},
    {"r4,window=f16/f16", "r4/r4", NULL},
    {"r4,window=f16/bf16", "r4/r4,window=f16/bf16", NULL},
    {"r4,window=c:r4/r4", "r4/r4,window=c:r4/r4", NULL},
    {"r4,edge=1:f16", "r4/r4,edge=1:f16/f16", NULL},
    {"r4,edge=4096:f16", "r4/r4,edge=4096:f16/f16", NULL},
    {"r4,edge=02:f16", "r4/r4,edge=2:f16/f16", NULL},
    {"r4,edge=2:h:a4g64", "r4/r4,edge=2:h:a4g64/h:a4g64", NULL},
    {"r4,edge=2:c:r8/h:a4g64", "r4/r4,edge=2:c:r8/h:a4g64", NULL},
    {"r4,edge=2:r4", "r4/r4,edge=2:r4/r4", NULL},
    {"r4,sinks=100000:f16", "r4/r4,sinks=100000:f16/f16", NULL},
    {"sinks=4:f16,edge=3:r8,window=bf16,v=r4,k=r5", "r5/r4,window=bf16/bf16,edge=3:r8/r8,sinks=4:f16/f16",
     NULL},
};

static const struct {
    const char *text, *fragment;
} invalid[] = {
    {"", "the policy is empty"},
    {"x4", "\"x4\" is not a preset or a codec"},
    {"K8V4", "\"K8V4\" is not a preset or a codec"},
    {"a4", "\"a4\" is not a preset or a codec"},
    {"h:r4", "\"h:r4\" is not a preset or a codec"},
    {"k8v4/r4", "\"k8v4\" is not a codec"},
    {"r4/x", "\"x\" is not a codec"},
    {"r4/r4/r4", "\"r4/r4\" is not a codec"},
    {"r4/", "\"r4/\" lacks the name of a codec"},
    {"/r4", "\"/r4\" lacks the name of a codec"},
    {"/", "lacks the name of a codec"},
    {"k=r4,v=", "\"v=\" lacks the name of a codec"},
    {"k=r4/r4,v=r4", "\"r4/r4\" is not a codec"},
    {"k=balanced,v=r4", "\"balanced\" is not a codec"},
    {"=r4", "\"=r4\" has an unknown key"},
    {"r4,q=r4", "\"q=r4\" has an unknown key; the keys are k, v, window, edge and sinks"},
    {"r4,K=r4", "\"K=r4\" has an unknown key"},
    {"r4,r5", "\"r5\" is not an item"},
    {"r4,balanced", "\"balanced\" is not an item"},
    {"k=r4,balanced", "\"balanced\" is not an item"},
    {"r4,", "has an empty item"},
    {",r4", "has an empty item"},
    {",", "has an empty item"},
    {"r4,,k=r4", "has an empty item"},
    {"k=r4", "\"k=r4\" gives no codec for V"},
    {"v=r4", "\"v=r4\" gives no codec for K"},
    {"edge=2:f16", "gives no codec for K"},
    {"k=r4,v=r4,k=r4", "\"k=r4\" has a key that was already given"},
    {"r4,v=r4,v=r5", "\"v=r5\" has a key that was already given"},
    {"r4,window=f16,window=f16", "\"window=f16\" has a key that was already given"},
    {"r4,edge=1:f16,edge=2:f16", "\"edge=2:f16\" has a key that was already given"},
    {"r4,sinks=1:f16,sinks=1:f16", "\"sinks=1:f16\" has a key that was already given"},
    {"r4,edge=f16", "\"edge=f16\" lacks a number and a colon"},
    {"r4,edge=2", "\"edge=2\" lacks a number and a colon"},
    {"r4,edge=", "\"edge=\" lacks a number and a colon"},
    {"r4,edge=c:r4", "\"edge=c:r4\": the part before the first colon is not a number"},
    {"r4,edge=-1:f16", "\"edge=-1:f16\": the part before the first colon is not a number"},
    {"r4,edge=+1:f16", "\"edge=+1:f16\": the part before the first colon is not a number"},
    {"r4,edge=0x1:f16", "not a number"},
    {"r4,edge=:f16", "must be 1 to 4096"},
    {"r4,edge=0:f16", "\"edge=0:f16\": the number before the colon must be 1 to 4096"},
    {"r4,edge=4097:f16", "must be 1 to 4096"},
    {"r4,edge=4294967297:f16", "must be 1 to 4096"},
    {"r4,edge=18446744073709551617:f16", "must be 1 to 4096"},
    {"r4,sinks=0:f16", "must be 1 to 100000"},
    {"r4,sinks=100001:f16", "must be 1 to 100000"},
    {"r4,edge=2:", "\"edge=2:\" lacks the name of a codec"},
    {"r4,edge=2:x", "\"x\" is not a codec"},
    {"r4,edge=2:3:r4", "\"3:r4\" is not a codec"},
    {"c:r4", "\"c:r4\": c: codecs are for K only; write c:r4/r4"},
    {"r5/c:r4", "\"r5/c:r4\": c: codecs are for K only; write r5/r4"},
    {"c:r4/c:r3", "c: codecs are for K only; write c:r4/r3"},
    {"k=c:r4,v=c:r4", "\"v=c:r4\": c: codecs are for K only; write v=r4"},
    {"r4,window=c:r4", "\"window=c:r4\": c: codecs are for K only; write c:r4/r4"},
    {"r4,edge=2:c:r4", "\"edge=2:c:r4\": c: codecs are for K only; write c:r4/r4"},
    {"r4,sinks=64:r4/c:r4", "c: codecs are for K only; write r4/r4"},
    {"r4, k=r8", "has a space"},
    {" r4", "has a space"},
    {"r4 ", "has a space"},
    {"r4\t", "\"r4?\" is not a preset"},
    {"\x1b[31mr4\x7f\xff\n", "\"?[31mr4???\" is not a preset"},
    {"k=r4,v=a-name-that-is-much-longer-than-any-name-of-a-codec-there-will-ever-be",
     "\"a-name-that-is-much-longer-than-any-name-o...\" is not a codec"},
};

static bool same_pair(quire_codec_pair a, quire_codec_pair b)
{
    return a.k == b.k && a.v == b.v;
}

static void check_again(const quire_policy *policy)
{
    for (int with_profile = 0; with_profile < 2; with_profile++) {
        quire_policy again;
        char why[256] = "";
        if (quire_policy_parse(&again, policy->canonical, with_profile, why, sizeof why))
            fail_msg("%s: %s", policy->canonical, why);
        assert_string_equal(again.canonical, policy->canonical);
        assert_true(same_pair(policy->main, again.main) && same_pair(policy->window, again.window));
        assert_true(same_pair(policy->edge, again.edge) && same_pair(policy->sinks, again.sinks));
        assert_int_equal(policy->edge_layers, again.edge_layers);
        assert_int_equal(policy->sink_tokens, again.sink_tokens);
    }
}

static void valid_policies(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(valid); i++) {
        for (int with_profile = 0; with_profile < 2; with_profile++) {
            quire_policy policy;
            char why[256] = "";
            if (quire_policy_parse(&policy, valid[i].text, with_profile, why, sizeof why))
                fail_msg("%s: %s", valid[i].text, why);
            bool other = with_profile && valid[i].with_profile;
            assert_string_equal(policy.canonical, other ? valid[i].with_profile : valid[i].canonical);
            check_again(&policy);
        }
    }
}

/* A preset is what the table says, and a policy of its own. Who writes no policy is told its name. */
static void preset_table(void **state)
{
    (void)state;
    char why[256] = "";
    quire_policy policy;
    assert_int_equal(quire_policy_parse(&policy, "4", false, why, sizeof why), QUIRE_EINVAL);
    for (uint32_t i = 0; i < quire_preset_count(); i++) {
        const quire_preset *p = quire_preset_at(i);
        if (!strstr(why, p->name)) fail_msg("\"%s\" does not say that there is %s", why, p->name);
        assert_int_equal(quire_policy_parse(&policy, p->name, false, NULL, 0), QUIRE_OK);
        assert_string_equal(policy.canonical, p->without);
        assert_int_equal(quire_policy_parse(&policy, p->name, true, NULL, 0), QUIRE_OK);
        assert_string_equal(policy.canonical, p->with_profile);
    }
    assert_null(quire_preset_at(quire_preset_count()));
}

static void parsed_fields(void **state)
{
    (void)state;
    quire_policy p;
    assert_int_equal(quire_policy_parse(&p, "r5/r3,edge=2:c:r8/r6,sinks=65:bf16", false, NULL, 0), QUIRE_OK);
    assert_string_equal(p.main.k->info.name, "r5");
    assert_string_equal(p.main.v->info.name, "r3");
    assert_string_equal(p.window.k->info.name, "f16");
    assert_string_equal(p.window.v->info.name, "f16");
    assert_string_equal(p.edge.k->info.name, "c:r8");
    assert_string_equal(p.edge.v->info.name, "r6");
    assert_string_equal(p.sinks.k->info.name, "bf16");
    assert_string_equal(p.sinks.v->info.name, "bf16");
    assert_int_equal(p.edge_layers, 2);
    assert_int_equal(p.sink_tokens, 65);

    assert_int_equal(quire_policy_parse(&p, "r4", false, NULL, 0), QUIRE_OK);
    assert_true(!p.edge.k && !p.edge.v && !p.sinks.k && !p.sinks.v && !p.edge_layers && !p.sink_tokens);
}

static void check_invalid(const char *text, const char *fragment)
{
    quire_policy policy, untouched;
    char why[256] = "";
    memset(&policy, 0x5a, sizeof policy);
    memset(&untouched, 0x5a, sizeof untouched);
    if (!quire_policy_parse(&policy, text, false, why, sizeof why)) fail_msg("%s was accepted", text);
    if (!strstr(why, fragment)) fail_msg("%s: \"%s\" lacks \"%s\"", text, why, fragment);
    for (const char *c = why; *c; c++) assert_true(*c >= ' ' && *c <= '~');
    assert_memory_equal(&policy, &untouched, sizeof policy);

    /* A short buffer gets the beginning. */
    char small[10], *none = NULL;
    memset(small, 'x', sizeof small);
    assert_int_equal(quire_policy_parse(&policy, text, true, small, 8), QUIRE_EINVAL);
    assert_int_equal(strlen(small), 7);
    assert_memory_equal(small, why, 7);
    assert_int_equal(small[8], 'x');
    assert_int_equal(quire_policy_parse(&policy, text, false, none, 0), QUIRE_EINVAL);
}

static void invalid_policies(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(invalid); i++) check_invalid(invalid[i].text, invalid[i].fragment);
    check_invalid(NULL, "no policy was given");
}

static void length_limit(void **state)
{
    (void)state;
    quire_policy policy;
    char text[QUIRE_POLICY_MAX + 1] = "r4,edge=", why[256];
    size_t used = strlen(text), tail = strlen("1:f16");
    memset(text + used, '0', sizeof text - used);
    memcpy(text + sizeof text - 2 - tail, "1:f16", tail + 1); /* 511 characters */
    assert_int_equal(strlen(text), QUIRE_POLICY_MAX - 1);
    assert_int_equal(quire_policy_parse(&policy, text, false, why, sizeof why), QUIRE_OK);
    assert_string_equal(policy.canonical, "r4/r4,edge=1:f16/f16");
    memset(text + used, '0', sizeof text - used);
    memcpy(text + sizeof text - 1 - tail, "1:f16", tail + 1); /* 512 */
    check_invalid(text, "more than 511 characters");
}

/* Every pair, in every place that takes one. */
static void every_pair(void **state)
{
    (void)state;
    static const char *const forms[] = {"%s/%s", "k=%s,v=%s", "f32,window=%s/%s", "f32,edge=7:%s/%s",
                                        "f32,sinks=8:%s/%s"};
    for (uint32_t i = 0; i < quire_codec_count(); i++) {
        for (uint32_t j = 0; j < quire_codec_count(); j++) {
            const quire_codec_info *k = quire_codec_at(i), *v = quire_codec_at(j);
            for (size_t f = 0; f < COUNT(forms); f++) {
                quire_policy policy;
                char text[128], why[256] = "";
                (void)snprintf(text, sizeof text, forms[f], k->name, v->name);
                quire_status status = quire_policy_parse(&policy, text, false, why, sizeof why);
                if (v->flags & QUIRE_CODEC_CALIBRATED) {
                    assert_int_equal(status, QUIRE_EINVAL);
                    assert_non_null(strstr(why, "c: codecs are for K only"));
                    continue;
                }
                if (status) fail_msg("%s: %s", text, why);
                if (f == 0) assert_string_equal(policy.canonical, text);
                check_again(&policy);
            }
        }
    }
}

/* The longest names in all places must fit in the canonical form. */
static void canonical_fits(void **state)
{
    (void)state;
    size_t longest = 0;
    for (uint32_t i = 0; i < quire_codec_count(); i++) {
        size_t n = strlen(quire_codec_at(i)->name);
        longest = n > longest ? n : longest;
    }
    assert_true(longest < 32);
    assert_true(8 * longest + strlen("/,window=/,edge=4096:/,sinks=100000:/") < QUIRE_POLICY_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(valid_policies),   cmocka_unit_test(preset_table), cmocka_unit_test(parsed_fields),
        cmocka_unit_test(invalid_policies), cmocka_unit_test(length_limit), cmocka_unit_test(every_pair),
        cmocka_unit_test(canonical_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
