/* Memory of other processes that this process has imported. The region shows whose it is, until this
 * process is charged for it: docs/protocols.md, *Lent memory*. */
#ifndef RATION_IMPORT_H
#define RATION_IMPORT_H

#include <stdbool.h>
#include <stdint.h>

/* import_begin is called before the driver imports a descriptor. import_end is called when the import has
 * failed, or its last handle and mapping are gone. */
void import_begin(int fd);
void import_end(void);

/* import_any returns true if there are imports, or one is under way. */
bool import_any(void);

/* Around a reading of the driver's count, which the caller has serialised. import_before_reading finds the
 * makers that have ended and of whose memory there is no descriptor: the driver lists it with one of its
 * importers. import_after_reading follows if the reading was exact, and so all memory that the driver
 * lists with this process is charged: the region shows these makers no longer. */
void import_before_reading(unsigned device);
void import_after_reading(unsigned device);

/* import_reset clears the state that a fork handed down. */
void import_reset(void);

#endif
