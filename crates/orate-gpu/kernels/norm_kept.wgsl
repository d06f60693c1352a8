    // A row in registers: vectors x_i from channel c_i on; zeros past the end. Scale and shift are loaded
    // before the threads wait for each other. `finished` is a function of results and their channel.
//@ for i KEPT
    var scale_${i} = vec4<f32>();
    var shift_${i} = vec4<f32>();
    if c_${i} < p.c {
        scale_${i} = vectors[(p.${NORM_WEIGHT} + c_${i}) >> 2u];
        shift_${i} = vectors[(p.${NORM_BIAS} + c_${i}) >> 2u];
    }
//@ end
    var sum = 0.0;
//@ for i KEPT
    sum += dot(x_${i}, vec4<f32>(1.0));
//@ end
    let mean = divided(total(sum, ${REDUCE_ARGUMENTS}), p.c);
    var squares = 0.0;
//@ for i KEPT
    x_${i} -= vec4<f32>(mean);
    if c_${i} < p.c {
        squares += dot(x_${i}, x_${i});
    }
//@ end
    let variance = total(squares, ${REDUCE_ARGUMENTS}) / f32(p.c);
    let factor = 1.0 / sqrt(variance + p.eps);
//@ for i KEPT
    if c_${i} < p.c {
        memory[(out + c_${i}) >> 2u] = finished(fma(x_${i} * factor, scale_${i}, shift_${i}), c_${i});
    }
//@ end
