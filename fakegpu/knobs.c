#include "knobs.h"

#include <pthread.h>
#include <stdlib.h>

#include "ledger.h"
#include "models.h"
#include "report.h"

static struct knobs knob_values;
static pthread_once_t knob_once = PTHREAD_ONCE_INIT;

static bool knob_size(const char *name, uint64_t *out)
{
	const char *text = getenv(name);
	uint64_t n;

	if (text == NULL || *text == '\0')
		return false;
	if (size_parse(text, &n) != 0) {
		report_note("%s=%s is not a size (try 512m)", name, text);
		return false;
	}
	*out = n;
	return true;
}

/* A number of at most three places after the point, in thousandths. */
static bool knob_thousandths(const char *name, uint64_t *out)
{
	const char *text = getenv(name);
	char *end;
	double n;

	if (text == NULL || *text == '\0')
		return false;
	n = strtod(text, &end);
	if (*end != '\0' || !(n >= 0 && n <= 1e6)) {
		report_note("%s=%s is not a speed (try 10)", name, text);
		return false;
	}
	*out = (uint64_t)(n * 1000 + 0.5);
	return true;
}

/* FAKEGPU_CHECKPOINT=OUT[:BACK] */
static void knob_checkpoint(void)
{
	const char *text = getenv("FAKEGPU_CHECKPOINT");
	char *end;

	if (text == NULL || *text == '\0')
		return;
	knob_values.out = knob_values.back = strtoull(text, &end, 10);
	if (end != text && *end == ':')
		knob_values.back = strtoull(text = end + 1, &end, 10);
	knob_values.checkpoint = end != text && *end == '\0';
	if (!knob_values.checkpoint)
		report_note("FAKEGPU_CHECKPOINT=%s is not two speeds (try 1700:4500)", getenv("FAKEGPU_CHECKPOINT"));
}

static void knob_read_all(void)
{
	uint64_t n;

	knob_values.block = LEDGER_UNIT;
	if (knob_size("FAKEGPU_LATENCY_US", &n))
		knob_values.latency_us = (unsigned)n;
	if (knob_size("FAKEGPU_BLOCK", &n) && n >= LEDGER_UNIT)
		knob_values.block = n;
	if (knob_size("FAKEGPU_FRAGMENTED", &n))
		knob_values.fragmented = n != 0;
	if (knob_size("FAKEGPU_LAZY", &n))
		knob_values.lazy = n != 0;
	if (knob_size("FAKEGPU_QUEUE", &n))
		knob_values.queue = (unsigned)n;
	knob_values.clock_set = knob_thousandths("FAKEGPU_CLOCK", &knob_values.clock);
	knob_values.switch_set = knob_size("FAKEGPU_SWITCH", &n);
	if (knob_values.switch_set)
		knob_values.switch_ns = n * 1000;
	knob_values.resume_set = knob_size("FAKEGPU_RESUME", &n);
	if (knob_values.resume_set)
		knob_values.resume_ns = n * 1000;
	knob_size("FAKEGPU_COPY", &knob_values.copy);
	if (knob_size("FAKEGPU_HOST_FUNCTION", &n))
		knob_values.host_ns = n * 1000;
	knob_checkpoint();
	knob_values.context_set = knob_size("FAKEGPU_CONTEXT", &knob_values.context);
	knob_size("FAKEGPU_HIDDEN", &knob_values.hidden);
}

const struct knobs *knobs(void)
{
	pthread_once(&knob_once, knob_read_all);
	return &knob_values;
}
