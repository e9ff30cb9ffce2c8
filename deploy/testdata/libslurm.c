/* What shards.c calls of Slurm's library, for tests: a job 7, beside other members of its array, on the nodes of
 * GRES, which has one entry a node, with '|' between them. The table of nodes is in another order than their names.
 * The job's name and comment are what a hostile user would write. */

#include <errno.h>
#include <slurm/slurm.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NODES 3
static char *names[NODES] = {"n3", "n1", "n2"};

void slurm_init(const char *conf) { (void)conf; }

int slurm_load_job(job_info_msg_t **out, uint32_t id, uint16_t flags)
{
	static char lines[] = "x\nJobId=7\n     Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:8(IDX:0)";
	static char *gres[NODES];
	static int32_t inx[] = {0, -1, -1};
	static job_info_t jobs[2];
	static job_info_msg_t answer = {.record_count = 2, .job_array = jobs};
	(void)flags;
	if (id != 7) {
		errno = ESRCH;
		return -1;
	}
	jobs[0] = (job_info_t){.job_id = 8, .array_job_id = 7, .nodes = "n1", .name = lines};
	jobs[1] =
		(job_info_t){.job_id = 7, .array_job_id = 7, .nodes = getenv("NODELIST"), .name = lines, .comment = lines, .node_inx = inx};
	jobs[1].tres_per_node = getenv("ASKED");
	jobs[1].partition = getenv("PARTITION");
	uint32_t n = 0;
	for (char *at = getenv("GRES"); at && n < NODES; n++) {
		char *next = strchr(at, '|');
		if (next)
			*next++ = 0;
		gres[n] = at;
		at = next;
	}
	inx[1] = n > 0 ? (int32_t)n - 1 : 0;
	jobs[1].gres_detail_cnt = n;
	jobs[1].gres_detail_str = gres;
	*out = &answer;
	return 0;
}

int slurm_load_node(time_t since, node_info_msg_t **out, uint16_t flags)
{
	static node_info_t nodes[NODES];
	static node_info_msg_t answer = {.record_count = NODES, .node_array = nodes};
	static char host[256];
	(void)since, (void)flags;
	gethostname(host, sizeof host - 1);
	for (int i = 0; i < NODES; i++)
		nodes[i] = (node_info_t){.name = names[i], .node_hostname = i == 2 ? host : names[i]};
	*out = &answer;
	return 0;
}

hostlist_t slurm_hostlist_create(const char *list) { return (hostlist_t)strdup(list); }
int slurm_hostlist_find(hostlist_t list, const char *name) { return strstr((char *)list, name) ? 0 : -1; }
void slurm_hostlist_destroy(hostlist_t list) { free(list); }
char *slurm_strerror(int number) { return strerror(number); }
