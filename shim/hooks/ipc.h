/* Memory that is shared with other processes by cuIpc calls. shim/PROTOCOLS.md, *Lent memory*. A process
 * that takes part in that cannot sleep. */
#ifndef RATION_IPC_H
#define RATION_IPC_H

/* ipc_import_ended is called when the last handle and mapping of imported memory are gone. It takes a
 * reading, since the memory may have been charged as driver overhead. */
void ipc_import_ended(void);

#endif
