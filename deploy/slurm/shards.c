/* shards JOB [NODE] prints how many shards a job has on a node, on which device, and the job's partition and QOS, as
 * "3 0 batch:normal"; or "none". For a partition or a QOS that it cannot print as a word it prints "?". Without a
 * database of accounts a job has no QOS: "3 0 batch".
 * NODE is what slurmd calls this node. Without it this is the job's only node, or the one with this machine's
 * host name.
 *
 * It asks slurmctld by Slurm's own library, and reads only fields that slurmctld makes itself: the
 * job's number, its nodes, its partition and QOS, and what it was given on each. The text of `scontrol show job` also has the
 * job's name, comment and paths, in which users can write line breaks. What it does not understand is an
 * error: it never answers "none" for a job that may have shards. */

#include <ctype.h>
#include <errno.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "shard"

static _Noreturn __attribute__((format(printf, 1, 2))) void fail(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	vprintf(format, list);
	putchar('\n');
	exit(1);
}

/* number_parse returns a decimal number of at most nine digits that ends at one of the characters, and moves
 * text there; or -1. */
static long number_parse(const char **text, const char *ends)
{
	size_t digits = strspn(*text, "0123456789");
	long value = strtol(*text, NULL, 10);
	if (digits == 0 || digits > 9 || !strchr(ends, (*text)[digits]))
		return -1;
	*text += digits;
	return value;
}

/* element_end returns the end of the first element of a list: a comma outside of brackets, or the end of text. */
static const char *element_end(const char *text)
{
	int depth = 0;
	for (; *text && (*text != ',' || depth > 0); text++)
		depth += *text == '(' || *text == '[' ? 1 : *text == ')' || *text == ']' ? -1 : 0;
	return text;
}

/* shards_parse parses an element, shard:3(IDX:0), or with a type shard:h200:3(IDX:0). It returns 0 if that is all
 * of it. */
static int shards_parse(const char *at, const char *end, long *count, long *device)
{
	at += strlen(PREFIX);
	if (*at++ != ':')
		return -1;
	if (!isdigit((unsigned char)*at)) {
		at += strcspn(at, ":(,");
		if (*at++ != ':')
			return -1;
	}
	*count = number_parse(&at, "(,");
	if (*count < 0 || (*count == 0 && at == end))
		return *count < 0 ? -1 : 0;
	if (strncmp(at, "(IDX:", 5))
		return -1;
	at += 5;
	if (*count == 0)
		return 0; /* on no device */
	*device = number_parse(&at, ")");
	return *device >= 0 && at + 1 == end ? 0 : -1;
}

/* name_word returns the name of a partition or a QOS if it is a plain word, as of a job that runs. */
static const char *name_word(const char *name)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
	return name && *name && !name[strspn(name, plain)] ? name : "?";
}

/* gres_print prints the shards in what slurmctld has for a node, gpu:0,shard:3(IDX:0), the partition and the QOS. */
static void gres_print(const char *gres, const char *partition, const char *qos)
{
	long found = 0, on = 0;
	for (const char *at = gres, *end; *at; at = *end ? end + 1 : end) {
		long count = 0, device = -1;
		end = element_end(at);
		if (strncmp(at, PREFIX, strlen(PREFIX)))
			continue;
		if (shards_parse(at, end, &count, &device) || (count && found))
			fail("its shards are not on one device, or Slurm writes them in a new form: %s", gres);
		if (count)
			found = count, on = device;
	}
	if (found)
		printf("%ld %ld %s%s%s\n", found, on, name_word(partition), qos && *qos ? ":" : "", qos && *qos ? name_word(qos) : "");
	else
		puts("none");
}

/* node_is returns whether a node has a name; or without one, this machine's host name. */
static int node_is(const node_info_t *node, const char *name)
{
	char host[256] = "";
	if (name)
		return node->name && !strcmp(node->name, name);
	if (gethostname(host, sizeof host - 1) || !node->node_hostname)
		return 0;
	size_t n = strcspn(host, ".");
	return !strcmp(node->node_hostname, host) || (!strncmp(node->node_hostname, host, n) && !node->node_hostname[n]);
}

/* node_position returns how many nodes of a job are before this one, in the order of Slurm's table of nodes, which
 * is that of the job's gres_detail_str. The job's list of names has another order. */
static long node_position(const job_info_t *job, const char *name)
{
	node_info_msg_t *all = NULL;
	if (slurm_load_node((time_t)0, &all, SHOW_ALL))
		fail("slurmctld does not list its nodes: %s", slurm_strerror(errno));
	long position = 0, found = -1;
	for (const int32_t *range = job->node_inx; range && range[0] >= 0; range += 2) {
		for (int32_t i = range[0]; i <= range[1]; i++, position++) {
			if ((uint32_t)i >= all->record_count || !node_is(&all->node_array[i], name))
				continue;
			if (found >= 0)
				fail("the job has several nodes on this machine");
			found = position;
		}
	}
	return found;
}

/* has_node returns whether a list of nodes, node[1-3], has one. */
static int has_node(const char *nodes, const char *name)
{
	hostlist_t list = slurm_hostlist_create(nodes);
	int found = list && slurm_hostlist_find(list, name) >= 0;
	if (list)
		slurm_hostlist_destroy(list);
	return found;
}

static void job_print(const job_info_t *job, const char *name)
{
	if (!job->nodes || (name && !has_node(job->nodes, name)))
		fail("slurmctld does not have the job on this node");
	if (job->gres_detail_cnt == 0) {
		/* A request is the user's text: it can only make this an error. */
		const char *asked[] = {job->tres_per_node, job->tres_per_job, job->tres_per_socket, job->tres_per_task, job->gres_total};
		for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
			if (asked[i] && strstr(asked[i], PREFIX))
				fail("slurmctld does not tell which shards the job has");
		puts("none");
		return;
	}
	long position = job->gres_detail_cnt > 1 ? node_position(job, name) : 0;
	if (position < 0 || position >= (long)job->gres_detail_cnt || !job->gres_detail_str)
		fail("slurmctld does not tell what the job has on this node");
	gres_print(job->gres_detail_str[position] ? job->gres_detail_str[position] : "", job->partition, job->qos);
}

int main(int argc, char **argv)
{
	char *end;
	if (argc < 2 || argc > 3 || !isdigit((unsigned char)argv[1][0]))
		fail("shards needs a job's number, and may have a node");
	errno = 0;
	unsigned long id = strtoul(argv[1], &end, 10);
	if (errno || *end || id == 0 || id >= NO_VAL)
		fail("%s is not a job's number", argv[1]);
	job_info_msg_t *jobs = NULL;
	slurm_init(NULL);
	/* The job is this cluster's, in a federation too: without SHOW_LOCAL slurmctld is asked first whether there is one, and
	 * other clusters may have a job of the same number. */
	if (slurm_load_job(&jobs, (uint32_t)id, SHOW_ALL | SHOW_DETAIL | SHOW_LOCAL))
		fail("slurmctld does not answer: %s", slurm_strerror(errno));
	/* One member of an array has the array's number, for which slurmctld sends all of them. */
	const job_info_t *job = NULL;
	for (uint32_t i = 0; i < jobs->record_count; i++) {
		if (jobs->job_array[i].job_id != id)
			continue;
		if (job)
			fail("slurmctld has two jobs %lu", id);
		job = &jobs->job_array[i];
	}
	if (!job)
		fail("slurmctld has no job %lu", id);
	job_print(job, argv[2]); /* NULL where there is none */
	return 0;
}
