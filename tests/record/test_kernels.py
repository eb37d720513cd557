"""Where each millisecond goes: sums by hand on lists of kernels, names from real traces."""

import pytest

from labkit.record.kernels import CLASSES, Kernel, breakdown, classify

FP8 = "nvjet_sm90_qqtst_192x192_128x4_1x2_h_bz_coopB_TNN"
BF16 = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"
NCCL = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
CAST = "cast_transpose_optimized_kernel(__nv_bfloat16 const*, float const*, __nv_fp8_e4m3*, __nv_fp8_e4m3*)"
GROUPED = (
    "_ZN7cutlass13device_kernelIN2at4cuda6detail25enable_3x_kernel_for_sm9xINS_4gemm6kernel13GemmUniversalINS5_17"
    "GroupProblemShapeIN4cute5tupleIJiiiEEEEE6LayoutINS_7SwizzleILi3ELi4ELi3EEE"
)


@pytest.mark.parametrize(
    "name, kind",
    [  # as the profiler gave them on an H200, shortened
        (FP8, "GEMM fp8"),
        (BF16, "GEMM bf16"),
        (NCCL, "communication"),
        (CAST, "quantize/cast"),
        ("nvjet_sm90_qrtst_128x160_128x5_2x1_v_bz_coopA_algo2_TNT", "GEMM fp8"),
        ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_splitK_NTN", "GEMM bf16"),
        ("void cutlass::device_kernel<enable_3x_kernel_for_sm9x<GemmUniversal<cutlass::float_e4m3_t>>>", "GEMM fp8"),
        (f"{GROUPED}N10bfloat16_tE", "GEMM bf16"),  # the experts of a mixture
        (f"{GROUPED}N12float_e4m3_tE", "GEMM fp8"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x4x1", "attention"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128>>", "attention"),
        ("void cudnn::fusion::convert_dq_to_16bits<true>(void const*, void*)", "attention"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("void at::native::detail::chunk_cat_cuda_kernel<float, c10::BFloat16>", "communication"),
        ("transpose_optimized_kernel(__nv_fp8_e4m3 const*, float const*, __nv_fp8_e4m3*)", "quantize/cast"),
        ("triton_red_fused_abs_max_mul_silu_silu_backward_view_4", "quantize/cast"),
        ("triton_poi_fused__to_copy_add_cat_mul_neg_slice_transpose_unsqueeze_3", "norm and elementwise"),
        ("triton_poi_fused__unsafe_view_mul_silu_5", "norm and elementwise"),
        ("Memcpy DtoD (Device -> Device)", "norm and elementwise"),
        ("something_nobody_knows", "other"),
    ],
)
def test_names_from_real_traces(name, kind):
    assert classify(name) == kind


def test_a_stream_without_overlap_by_hand():
    found = breakdown([Kernel(BF16, 1000, 3000), Kernel(FP8, 3000, 4500), Kernel(CAST, 5000, 6000)], steps=1)
    assert found.span_ms == 5.0 and found.hidden_communication_ms == 0
    assert found.evidence == {"fp8_gemm": True, "bf16_gemm": True, "quantize": True}
    assert breakdown([Kernel(BF16, 0, 1)]).evidence == {"fp8_gemm": False, "bf16_gemm": True, "quantize": False}
    some = {kind: ms for kind, ms in found.classes_ms.items() if ms}
    assert some == {"GEMM bf16": 2.0, "GEMM fp8": 1.5, "idle": 0.5, "quantize/cast": 1.0}


def test_every_moment_belongs_to_one_class():
    """Communication beside a product is hidden; alone it costs; two computing kernels share."""
    found = breakdown(
        [Kernel(NCCL, 0, 4000), Kernel(BF16, 1000, 3000), Kernel(FP8, 2000, 3000), Kernel(NCCL, 5000, 6000)]
    )
    # 0-1, 3-4, 5-6 exposed; 1-3 hidden
    assert found.classes_ms["communication"] == 2 + 1 and found.hidden_communication_ms == 2.0
    assert found.classes_ms["GEMM bf16"] == 1.5 and found.classes_ms["GEMM fp8"] == 0.5  # alone 1-2, shared 2-3
    assert found.classes_ms["idle"] == 1.0
    assert sum(found.classes_ms.values()) == pytest.approx(found.span_ms) and list(found.classes_ms) == list(CLASSES)


def test_per_step():
    found = breakdown([Kernel(BF16, 0, 1000), Kernel(BF16, 2000, 3000)], steps=2)
    assert found.span_ms == 1.5 and found.classes_ms["GEMM bf16"] == 1.0 and found.classes_ms["idle"] == 0.5
    assert found.top == [{"name": BF16, "class": "GEMM bf16", "ms": 1.0, "calls": 1.0}]


def test_nothing_ran_and_no_step():
    empty = breakdown([])
    assert empty.span_ms == 0 and not any(empty.classes_ms.values())
    with pytest.raises(ValueError, match="at least one step"):
        breakdown([], steps=0)


def test_a_profile_without_a_gpu_has_no_device_kernels():
    import torch

    from labkit.record.kernels import device_kernels

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.ones(4) + 1
    assert device_kernels(profiler) == []
