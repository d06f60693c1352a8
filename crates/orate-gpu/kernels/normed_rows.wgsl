    // Rows of x in registers, with a layer norm: normed_i_r_w are four elements of row norm_row_i of the
    // tile, at vector w · OF_NORM + norm_part of slice r.
    let norm_part = invocation % OF_NORM;
//@ for i NORM_TIMES
    let norm_row_${i} = (${i}u * ${SUBGROUPS}u + subgroup) * NORM_ROWS + invocation / OF_NORM;
    let norm_from_${i} = (p.x + min(first_row + norm_row_${i}, p.m - 1u) * p.k) / 4u + norm_part;
//@ for r ROUNDS
//@ for w NORM_VECTORS
    var x_${i}_${r}_${w} =
        memory[norm_from_${i} + (${r}u * ${NORM_VECTORS}u + ${w}u) * OF_NORM];
//@ end
//@ end
//@ end
//@ for i NORM_TIMES
    var sum_of_${i} = 0.0;
//@ for r ROUNDS
//@ for w NORM_VECTORS
    sum_of_${i} += dot(x_${i}_${r}_${w}, vec4<f32>(1.0));
//@ end
//@ end
    let mean_${i} = divided(of_row(sum_of_${i}), p.k);
    var squares_of_${i} = 0.0;
//@ for r ROUNDS
//@ for w NORM_VECTORS
    x_${i}_${r}_${w} -= mean_${i};
    squares_of_${i} += dot(x_${i}_${r}_${w}, x_${i}_${r}_${w});
//@ end
//@ end
    let root_${i} = 1.0 / sqrt(of_row(squares_of_${i}) / f32(p.k) + p.eps);
//@ end
//@ for r ROUNDS
//@ for w NORM_VECTORS
    let norm_${r}_${w} = (${r}u * ${NORM_VECTORS}u + ${w}u) * OF_NORM + norm_part;
    let scale_${r}_${w} = vectors[p.norm / 4u + norm_${r}_${w}];
    let shift_${r}_${w} = vectors[p.shift / 4u + norm_${r}_${w}];
//@ for i NORM_TIMES
    let normed_${i}_${r}_${w} = vec4<f16>(
        fma(x_${i}_${r}_${w} * root_${i}, scale_${r}_${w}, shift_${r}_${w}));
//@ end
//@ end
//@ end
