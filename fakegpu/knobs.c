#include "knobs.h"

#include <pthread.h>
#include <stdlib.h>

#include "ledger.h"
#include "models.h"
#include "report.h"

static struct knobs values;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool size_knob(const char *name, uint64_t *out)
{
    const char *text = getenv(name);
    uint64_t n;

    if (text == NULL || *text == '\0')
        return false;
    if (size_parse(text, &n) != 0) {
        report_note("%s=%s is no size (try 512m)", name, text);
        return false;
    }
    *out = n;
    return true;
}

static void read_knobs(void)
{
    uint64_t n;

    values.block = LEDGER_UNIT;
    if (size_knob("FAKEGPU_QUIET", &n))
        values.quiet = n != 0;
    if (size_knob("FAKEGPU_STRICT", &n))
        values.strict = (int)n;
    if (size_knob("FAKEGPU_LATENCY_US", &n))
        values.latency_us = (unsigned)n;
    if (size_knob("FAKEGPU_BLOCK", &n) && n >= LEDGER_UNIT)
        values.block = n;
    if (size_knob("FAKEGPU_FRAGMENTED", &n))
        values.fragmented = n != 0;
    if (size_knob("FAKEGPU_LAZY", &n))
        values.lazy = n != 0;
    if (size_knob("FAKEGPU_ORPHANS", &n))
        values.orphans = n != 0;
    if (size_knob("FAKEGPU_QUEUE", &n))
        values.queue = (unsigned)n;
    values.context_set = size_knob("FAKEGPU_CONTEXT", &values.context);
    size_knob("FAKEGPU_HIDDEN", &values.hidden);
}

const struct knobs *knobs(void)
{
    pthread_once(&once, read_knobs);
    return &values;
}
