// The kernel as a function of a CPU, for ctypes. Compiled with the same definitions as on a GPU, and PSI_EMULATED.
#include "decode.cu"

namespace {
Job the_job;
void run_kernel() { psi_decode(the_job); }
}  // namespace

// Runs `blocks` blocks. Returns null, or what the kernel did that it must not do. Files and manifest lie in one buffer.
extern "C" const char* psi_emulate(const Job* job, u32 first_block, u32 blocks, u64 readable_bytes, u64 out_bytes) {
    using namespace emulated;
    fault = nullptr;
    shared.assign(256 << 10, 0xA5);
    // Aligned as shared memory is.
    the_job = *job;
    blob = job->blob;
    blob_end = job->blob + readable_bytes;
    out = job->out;
    out_end = job->out + out_bytes;
    for (u32 number = first_block; number < first_block + blocks && !fault; number++) {
        the_job.blocks = job->blocks + first_block;
        if (!run_block(number - first_block, 32 * PSI_WARPS, run_kernel)) break;
    }
    return fault;
}

extern "C" u32 psi_record_bytes() { return sizeof(Picture); }
