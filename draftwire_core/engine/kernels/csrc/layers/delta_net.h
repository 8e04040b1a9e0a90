/* The steps of a gated delta net around its recurrence, which decoder_layer.c and Python call in this order. */
#ifndef DRAFTWIRE_DELTA_NET_H
#define DRAFTWIRE_DELTA_NET_H

#include "ops.h"

/* Writes the rows' inputs and gates, of `work`, from the outputs of the first projection [rows, width]. */
void draftwire_delta_inputs(const DeltaNet *net, const Recurrence *work, const float *projected, int64_t rows,
                            int32_t threads);

/* Overwrites the recurrence's results, `work->out`, with themselves normed and gated. */
void draftwire_delta_outputs(const DeltaNet *net, const Recurrence *work, const float *projected, int64_t rows,
                             int32_t threads);

/* Keeps the inputs and gates of rows that may be rolled back; after the recurrence, which reads what was stored before. */
void draftwire_delta_store(const Recurrence *work, const StoredRows *stored);

#endif
