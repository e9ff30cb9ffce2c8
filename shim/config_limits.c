#include "config_limits.h"

#include <string.h>

#include "environment.h"
#include "log.h"
#include "region/words.h"

#define CONFIG_MEMORY "CUDA_DEVICE_MEMORY_LIMIT"
#define CONFIG_COMPUTE "CUDA_DEVICE_SM_LIMIT"
#define CONFIG_COMPUTE_MAX "RATION_COMPUTE_MAX"
#define CONFIG_POLICY "GPU_CORE_UTILIZATION_POLICY"
#define CONFIG_ROUND "RATION_COMPUTE_ROUND"
#define CONFIG_MODE "RATION_COMPUTE"
#define CONFIG_PRIORITY "RATION_PRIORITY"
#define CONFIG_WAIT_ALLOC "RATION_WAIT_ALLOC"

/* config_after returns the rest of a variable after name: "=..." or "_...". It returns NULL if
 * the variable has another name. */
static const char *config_after(const char *variable, const char *name)
{
	size_t len = strlen(name);
	if (strncmp(variable, name, len) || (variable[len] != '=' && variable[len] != '_'))
		return NULL;
	return variable + len;
}

/* config_wrong logs a mistake in a variable, in the words of FromEnv in Go. It returns false. */
static bool config_wrong(const char *variable, const char *what, const char *use)
{
	const char *value = strchr(variable, '=') + 1;
	log_error("%.*s=\"%s\": %s (use %s)", (int)(value - 1 - variable), variable, value, what, use);
	return false;
}

/* config_first reports whether no earlier variable has the same name: the first of several
 * counts, as for getenv. */
static bool config_first(char **variable)
{
	size_t len = (size_t)(strchr(*variable, '=') - *variable) + 1;
	for (char **e = environment_all(); e < variable; e++)
		if (!strncmp(*e, *variable, len))
			return false;
	return true;
}

/* config_devices parses the device in the rest of a variable's name: devices from *from up to,
 * but not including, *to. It returns NULL, or a text that describes the mistake. */
static const char *config_devices(const char *ending, unsigned *from, unsigned *to)
{
	char index[8] = "";
	*from = 0, *to = RATION_DEVICES;
	if (*ending == '=')
		return NULL;
	size_t len = strcspn(++ending, "=");
	if (len < sizeof index)
		memcpy(index, ending, len), index[len] = 0;
	const char *what = parse_device(index, from);
	*to = *from + 1;
	return what;
}

/* config_limit_kind returns which limit a variable sets (an index into names) and sets *ending
 * to the text after its name. It returns -1 if the variable is no limit. */
static int config_limit_kind(const char *variable, const char **ending)
{
	static const char *const names[] = {CONFIG_MEMORY, CONFIG_COMPUTE, CONFIG_COMPUTE_MAX};
	for (int kind = 0; kind < 3; kind++)
		if ((*ending = config_after(variable, names[kind])) && strchr(*ending, '='))
			return kind;
	return -1;
}

bool config_limits_any(void)
{
	const char *ending;
	for (char **e = environment_all(); *e; e++)
		if (config_limit_kind(*e, &ending) >= 0)
			return true;
	return false;
}

/* config_read_limit reads one variable, if it is a limit. exact selects the variables that name
 * one device; otherwise those for all devices are read. It returns false after a mistake. */
static bool config_read_limit(struct config_limits *l, char **e, bool exact)
{
	const char *ending, *what;
	struct memory_limit m;
	struct compute_limit p;
	unsigned from, to;
	int kind = config_limit_kind(*e, &ending);
	if (kind < 0 || (*ending == '=') == exact || !config_first(e))
		return true;
	if ((what = config_devices(ending, &from, &to)))
		return config_wrong(*e, what, device_use);
	const char *value = strchr(*e, '=') + 1;
	if (!*value && kind < 2) {
		log_warn("%.*s is empty, and sets no limit", (int)(value - 1 - *e), *e);
		return true;
	}
	if ((what = kind == 0 ? parse_memory(value, &m) : kind == 1 ? parse_hami_compute(value, &p) : parse_compute(value, &p)))
		return config_wrong(*e, what, kind ? compute_use : memory_use);
	/* HAMi-core takes zero for one device as "use the limit for all devices", if there is
	 * one. */
	bool zero = *value == '0' && (kind ? !p.percent : m.none);
	if (exact && kind < 2 && zero && (kind ? l->compute[from].set : l->memory[from].set))
		return true;
	p.exact = exact;
	for (; from < to; from++) {
		if (kind == 0)
			l->memory[from] = m;
		else
			(kind == 1 ? l->compute : l->compute_max)[from] = p;
	}
	return true;
}

/* config_setting returns a variable's value, or NULL. *variable gets the start of "NAME=value",
 * which config_wrong needs. */
static const char *config_setting(const char *name, const char **variable)
{
	const char *value = environment_get(name);
	*variable = value ? value - strlen(name) - 1 : NULL;
	return value;
}

/* config_apply_policy turns HAMi-core's limit on compute into a share, a cap or nothing, by its
 * policy. A RATION_COMPUTE_MAX overrides a cap of HAMi-core, unless the first is for all
 * devices and the second for this device only. */
static void config_apply_policy(struct config_limits *l, enum compute_policy policy)
{
	for (unsigned d = 0; d < RATION_DEVICES && policy != POLICY_SHARE; d++) {
		const struct compute_limit *from = &l->compute[d], *own = &l->compute_max[d];
		if (policy == POLICY_CAP && from->set && (!own->set || (from->exact && !own->exact)))
			l->compute_max[d] = *from;
		l->compute[d] = (struct compute_limit){.set = false};
	}
}

bool config_limits_read(struct config_limits *l)
{
	bool good = true;
	const char *what;
	/* First the limits for all devices, then those for one device. */
	for (int exact = 0; exact < 2; exact++)
		for (char **e = environment_all(); *e; e++)
			good = config_read_limit(l, e, exact) && good;
	const char *variable, *value;
	enum compute_policy policy = POLICY_SHARE;
	if ((value = config_setting(CONFIG_ROUND, &variable)) && (what = parse_round(value, &l->round)))
		good = config_wrong(variable, what, round_use);
	if ((value = config_setting(CONFIG_MODE, &variable)) && (what = parse_mode(value, &l->strict)))
		good = config_wrong(variable, what, mode_use);
	if ((value = config_setting(CONFIG_HAMI_PRIORITY, &variable)))
		parse_hami_priority(value, &l->priority); /* config_log_meaningless names a wrong one */
	if ((value = config_setting(CONFIG_PRIORITY, &variable)) && (what = parse_priority(value, &l->priority)))
		good = config_wrong(variable, what, priority_use);
	if ((value = config_setting(CONFIG_WAIT_ALLOC, &variable)) && (what = parse_wait_alloc(value, &l->wait_alloc)))
		good = config_wrong(variable, what, wait_alloc_use);
	if ((value = config_setting(CONFIG_POLICY, &variable)) && (what = parse_policy(value, &policy)))
		good = config_wrong(variable, what, policy_use);
	config_apply_policy(l, policy);
	return good;
}

uint64_t config_limit(const struct config_limits *l, unsigned device, uint64_t total)
{
	const struct memory_limit *m = &l->memory[device];
	if (!m->set || (m->share && !total))
		return 0;
	if (m->none)
		return LIMIT_NONE;
	return make_limit(m->share ? share_of(m->share, total) : m->bytes);
}

/* config_compute returns a share or a cap in the region's encoding. */
static uint64_t config_compute(const struct compute_limit *l) { return !l->set ? 0 : l->percent ? l->percent : RATION_COMPUTE_NONE; }

void config_limits_pack(const struct config_limits *l, struct region_limits *out)
{
	memset(out, 0, sizeof *out);
	for (unsigned d = 0; d < RATION_DEVICES; d++) {
		out->memory[d] = config_limit(l, d, 0);
		out->compute[d] = config_compute(&l->compute[d]);
		out->compute_max[d] = config_compute(&l->compute_max[d]);
	}
	out->round = l->round;
	out->priority = l->priority;
	out->wait_alloc = l->wait_alloc;
}

bool config_environment_wants_compute(void)
{
	const char *policy_text = environment_get(CONFIG_POLICY), *ending;
	enum compute_policy policy = POLICY_SHARE;
	struct compute_limit l;
	uint8_t priority = 0;
	const char *hami = environment_get(CONFIG_HAMI_PRIORITY), *own = environment_get(CONFIG_PRIORITY);
	if (hami)
		parse_hami_priority(hami, &priority);
	if (own)
		parse_priority(own, &priority);
	if (priority_of(priority) != RATION_PRIORITY_NORMAL)
		return true;
	if (policy_text)
		parse_policy(policy_text, &policy);
	for (char **e = environment_all(); *e; e++) {
		int kind = config_limit_kind(*e, &ending);
		if (kind < 1 || (kind == 1 && policy == POLICY_NEITHER))
			continue;
		const char *value = strchr(*e, '=') + 1;
		if (!(kind == 1 ? parse_hami_compute(value, &l) : parse_compute(value, &l)) && l.percent)
			return true;
	}
	return false;
}
